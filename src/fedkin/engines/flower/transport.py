"""How the server reaches its sites over Flower: who is connected, requests out, answers in.

A site that did not answer in time is not waited for again until it is heard from.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict

from fedkin.engines.flower.answers import IncomingAnswer, arrivals
from fedkin.engines.flower.attendance import Attendance
from fedkin.engines.flower.engine import SiteRequest
from fedkin.engines.flower.private import (
    HttpGrid,
)
from fedkin.engines.flower.records import from_records, to_records
from fedkin.engines.flower.scripts.backoff import Backoff
from fedkin.engines.flower.text import shown
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError

CHECK_EVERY = 1.0  # seconds between checks of who is connected
HELLO_TIME = 120.0  # seconds that a hello may take before it is repeated
REFUSED_TIME = 10.0  # seconds before a site that was refused is asked again
GRACE = 2.0  # seconds that the last sites get at least once enough others have answered


@dataclass(frozen=True)
class WaitPolicy:
    """How long a request waits: for all reachable sites, at most `timeout` seconds.

    With a share `wait` below 1 it ends sooner: when that share has answered, the others get as
    long again as those took.
    """

    wait: float = 1.0
    timeout: float = 120.0

    def __post_init__(self) -> None:
        if not 0 < self.wait <= 1:
            raise FedkinError(f"--wait must be above 0 and at most 1, not {self.wait}")
        if not 0 < self.timeout < math.inf:
            raise FedkinError(f"--timeout must be above 0 and finite, not {self.timeout}")

    def changed(self, wait: float | None, timeout: float | None) -> WaitPolicy:
        """The same policy with the values that are given."""
        return WaitPolicy(
            self.wait if wait is None else wait, self.timeout if timeout is None else timeout
        )

    def enough(self, asked: int) -> int:
        return math.ceil(self.wait * asked - 1e-9)


@dataclass
class Sent:
    """A message on its way: to which node, and which request of which exchange (None: a hello)."""

    node: int
    until: float
    exchange: int | None = None
    position: int = 0
    site: str = ""


@dataclass
class KnownSite:
    """A connected site: its description of itself, and its Flower node."""

    facts: dict[str, Any]
    node: int


@dataclass
class Exchange:
    """The messages of one request: which sites they go to, which were sent, which are answered."""

    number: int
    requests: Sequence[SiteRequest]
    expected: set[int] = field(default_factory=set)
    answers: dict[int, Message | str] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    grace: float | None = None  # until when the last answers are waited for

    def open_at(self, site: str) -> list[int]:
        """Positions of requests to a site that are not answered."""
        return [
            i for i, request in enumerate(self.requests)
            if request.site == site and i not in self.answers
        ]  # fmt: skip


class FlowerTransport:
    """Requests to sites, and their answers, over a Flower grid.

    A site is known by its name; its node may change when it reconnects. A site that timed out
    is not asked again until it is heard from. `admit` checks the description of a new site and
    raises a FedkinError if the site cannot take part. With `registered` a site's name is the
    one its key was registered under, whatever the site claims; without, there may be sites
    that have no registered name. `stopping` says that the run is to end: then nobody is waited
    for where no site can be reached. `look` is called about every second.
    """

    def __init__(
        self,
        grid: HttpGrid,
        hello: Mapping[str, Any],
        admit: Callable[[dict[str, Any]], None],
        waiting: WaitPolicy,
        limit: int,
        warn: Callable[[str], None],
        registered: bool = False,
        stopping: Callable[[], bool] = lambda: False,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self.grid, self.hello, self.admit, self.waiting = grid, hello, admit, waiting
        self.limit, self.warn, self.registered = limit, warn, registered
        self.stopping, self.look, self.attendance = stopping, look, Attendance()
        self.known: dict[str, KnownSite] = {}
        self._names: dict[int, str] = {}  # registered names of the connected nodes
        self._refused: dict[int, float] = {}
        self._sent: dict[str, Sent] = {}
        self._incoming: dict[str, IncomingAnswer] = {}
        self._exchange = Exchange(0, ())
        self._looked, self._backoff = 0.0, Backoff(0.03, 0.2)

    # the sites ------------------------------------------------------------------------------

    def gather(self, done: Callable[[Mapping[str, KnownSite]], bool], seconds: float) -> bool:
        """Wait until enough sites are connected; False when time is up."""
        until = time.monotonic() + seconds
        while not done(self.known):
            if time.monotonic() > until:
                return False
            self._turn()
            for name, site in list(self.known.items()):
                if site.node not in self._names:
                    self._disconnect(name, site.node, "it has left")
        return True

    def _greet_new(self) -> None:
        """Greet every connected node that is not known yet."""
        now = time.monotonic()
        if now < self._looked + CHECK_EVERY:
            return
        self._looked = now
        self.look()
        self._names = {node.node_id: node.name for node in self.grid.get_nodes()}
        for key, sent in list(self._sent.items()):
            if sent.exchange is None and sent.until < now and key not in self._incoming:
                del self._sent[key]
        known = {site.node for site in self.known.values()}
        known |= {sent.node for sent in self._sent.values() if sent.exchange is None}
        for node in self._names:
            if node not in known and now >= self._refused.get(node, 0) + REFUSED_TIME:
                content = to_records({"kind": "hello", **self.hello})
                self._send([(node, content, "query", HELLO_TIME)], [Sent(node, now + HELLO_TIME)])

    def _meet(self, node: int, content: Message) -> None:
        """A node has answered the greeting."""
        _, facts = content
        known = self._names.get(node, "")
        name = known if self.registered else str(facts.get("name", ""))
        title = shown(name, 64) or str(node)
        try:
            if "error" in facts:
                raise FedkinError(shown(facts["error"]))
            if (self.registered or known) and known != facts.get("name"):
                claimed = shown(facts.get("name"), 64)
                raise FedkinError(f"its key is that of '{known}', not of '{claimed}'")
            self.admit(facts)
            before = self.known.get(name)
            other = before and before.facts["identity"] != facts["identity"]
            if before and other and before.node in self._names:
                raise FedkinError(
                    f"another site that is connected is called '{name}'; if that was this one "
                    "before a crash, join again in two minutes"
                )
        except FedkinError as error:
            if node not in self._refused:
                self.warn(f"site '{title}' cannot take part: {error}")
                self._refuse(node, str(error))
            self._refused[node] = time.monotonic()
            return
        if other:
            self.warn(f"site '{title}' is now another installation; what it remembered is lost")
        if before is None:
            self.warn(f"site '{title}' is here")
        self.known[name] = KnownSite(facts, node)
        self.attendance.heard(name)
        self._hand_over(self._exchange.open_at(name))

    def _refuse(self, node: int, reason: str) -> None:
        """Tell a node why it cannot take part; no answer is expected."""
        about = {"kind": "refused", "experiment": self.hello["experiment"], "reason": reason}
        self._send([(node, to_records(about), "query", HELLO_TIME)], [])

    def _disconnect(self, name: str, node: int, reason: str) -> None:
        """A site's node has disconnected; the site may be back under another node already."""
        if name in self.known and self.known[name].node == node:
            del self.known[name]
            self.warn(f"site '{name}' cannot be reached until it connects again: {reason}")

    # requests ------------------------------------------------------------------------------

    def exchange(
        self, requests: Sequence[SiteRequest], everyone: bool = False
    ) -> dict[int, Message | str]:
        """Send, then wait as the policy says, also for a site that reconnects in the meantime.

        With `everyone` no share is enough. A site that does not answer counts as unreachable
        from then on. When no site can be reached, the run waits for one to come back.
        """
        current = self._exchange = Exchange(self._exchange.number + 1, requests)
        order = list(range(len(requests)))
        random.Random(current.number).shuffle(order)  # nobody is always the last to be asked
        self._hand_over(order)
        until = time.monotonic() + self.waiting.timeout
        while not self._over(current, everyone):
            if time.monotonic() >= until:
                self._drop_silent(current)
                until = time.monotonic() + self.waiting.timeout
            if not self.known and self.stopping():
                raise KeyboardInterrupt
            self._turn()
        for i, request in enumerate(requests):
            self.attendance.request(request.site, i in current.answers)
        return current.answers

    def _over(self, current: Exchange, everyone: bool) -> bool:
        """Whether to continue with the answers that have arrived."""
        if not current.expected:
            return bool(self.known)
        there, now = len(current.answers), time.monotonic()
        if there >= len(current.expected):
            return True
        if everyone or there < self.waiting.enough(len(current.expected)):
            return False
        if current.grace is None:
            current.grace = now + max(GRACE, now - current.begun)
        return now >= current.grace

    def _drop_silent(self, current: Exchange) -> None:
        silent = current.expected - set(current.answers)
        current.expected -= silent
        for request in (current.requests[i] for i in sorted(silent)):
            if self.known.pop(request.site, None) is not None:
                seconds = f"{self.waiting.timeout:g} seconds"
                self.warn(
                    f"site '{request.site}' did not answer within {seconds}; it is not waited for "
                    "until it connects again"
                )
        if not self.known:
            self.warn("no site can be reached; waiting for one to come back")

    def _hand_over(self, positions: Iterable[int]) -> None:
        current, outgoing, marks = self._exchange, [], []
        until = time.monotonic() + self.waiting.timeout
        for i in positions:
            request = current.requests[i]
            if request.site not in self.known:
                continue
            node = self.known[request.site].node
            content = to_records(request.facts, shared=request.shared, own=request.own)
            outgoing.append((node, content, "train", self.waiting.timeout))
            marks.append(Sent(node, until, current.number, i, request.site))
            current.expected.add(i)
        self._send(outgoing, marks)

    def _send(self, outgoing: list[tuple[int, RecordDict, str, float]], marks: list[Sent]) -> None:
        messages = [
            FlowerMessage(content, dst_node_id=node, message_type=kind, ttl=ttl)
            for node, content, kind, ttl in outgoing
        ]
        if messages:
            # a message that Flower refuses gets no key and counts as lost
            keys = self.grid.push_messages(messages)
            self._sent |= {key: mark for key, mark in zip(keys, marks, strict=False) if key}

    def _turn(self) -> None:
        """Check who is connected and what has arrived; pause if nothing has."""
        self._greet_new()
        unannounced = [key for key in self._sent if key not in self._incoming]
        for incoming in arrivals(self.grid, unannounced):
            self._incoming[incoming.answers_to] = incoming
        opened = 0
        for key, incoming in list(self._incoming.items()):
            sent = self._sent[key]
            stale = sent.exchange not in (None, self._exchange.number)
            if stale or incoming.fetch(self.grid, self.limit):
                del self._incoming[key], self._sent[key]
                opened += 1
                self._open(sent, incoming, stale)
                incoming.discard(self.grid)
        if opened:
            self._backoff.over()
        else:
            self._backoff.take()

    def _open(self, sent: Sent, incoming: IncomingAnswer, stale: bool) -> None:
        if sent.site and not incoming.from_link:
            self.attendance.heard(sent.site)
        if stale:
            if not incoming.from_link:
                self.attendance.came_late(sent.site)
            return
        content: Message | str
        try:
            content = from_records(incoming.content(), self.limit)
        except FedkinError as error:
            content = str(error)
        if sent.exchange is not None:
            if incoming.lost:
                self._disconnect(
                    self._exchange.requests[sent.position].site, sent.node, str(content)
                )
            else:
                self._exchange.answers[sent.position] = content
        elif not isinstance(content, str):
            self._meet(sent.node, content)
