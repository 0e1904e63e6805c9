"""How the server reaches its sites over Flower: who is connected, requests out, answers in.

A site that did not answer in time is not waited for again until it is heard from.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict

from fedkin.engines.flower.answers import IncomingAnswer, arrivals
from fedkin.engines.flower.attendance import Attendance
from fedkin.engines.flower.bundles import tie, untie
from fedkin.engines.flower.engine import SiteRequest
from fedkin.engines.flower.exchange import Exchange, KnownSite, Sent, WaitPolicy, by_node
from fedkin.engines.flower.private import HttpGrid
from fedkin.engines.flower.records import from_records, to_records
from fedkin.engines.flower.scripts.backoff import Backoff
from fedkin.engines.flower.text import shown
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError

CHECK_EVERY = 1.0  # seconds between checks of who is connected
HELLO_TIME = 120.0  # seconds that a hello may take before it is repeated
REFUSED_TIME = 10.0  # seconds before a site that was refused is asked again
MOST_HOSTED = 1000  # sites that one machine may answer for
GRACE = 2.0  # seconds that the last sites get at least once enough others have answered


class FlowerTransport:
    """Requests to sites, and their answers, over a Flower grid.

    A site is known by its name; its node may change when it reconnects. A site that timed out
    is not asked again until it is heard from. `admit` checks the description of a new site and
    raises a FedkinError if the site cannot take part. With `registered` a site's name is the
    one its key was registered under, whatever the site claims; without, there may be sites
    that have no registered name. `stopping` says that the run is to end: then nobody is waited
    for where no site can be reached. `look` is called about every second. A site that leaves for
    good is told to `part`, and `left` has its name.
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
        part: Callable[[dict[str, Any]], None] = lambda facts: None,
    ) -> None:
        self.grid, self.hello, self.admit, self.waiting = grid, hello, admit, waiting
        self.limit, self.warn, self.registered = limit, warn, registered
        self.stopping, self.look, self.attendance = stopping, look, Attendance()
        self.part, self.left = part, set[str]()
        self.debug: Callable[[str], None] = lambda sentence: None  # told of every request
        self.known: dict[str, KnownSite] = {}
        self._names: dict[int, str] = {}  # registered names of the connected nodes
        self.bundle = 1  # most requests in one message to a machine of several sites
        self._hosted: dict[int, set[str]] = {}  # sites of such machines, by node
        self._refused: dict[int, float] = {}
        self._told: set[tuple[int, str]] = set()  # who has been told of a refusal
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
        known -= {node for node, names in self._hosted.items() if names - set(self.known)}
        known |= {sent.node for sent in self._sent.values() if sent.exchange is None}
        for node in self._names:
            if node not in known and now >= self._refused.get(node, 0) + REFUSED_TIME:
                content = to_records({"kind": "hello", **self.hello})
                self._send([(node, content, "query", HELLO_TIME)], [Sent(node, now + HELLO_TIME)])

    def _meet(self, node: int, content: Message) -> None:
        """A node has answered the greeting: a site, or a machine for each of its sites."""
        _, facts = content
        if "sites" not in facts:
            self._meet_site(node, facts, hosted=False)
            return
        told = facts["sites"]
        if not isinstance(told, list) or not 0 < len(told) <= MOST_HOSTED:
            told = [{"error": f"it tells of no sites, or of more than {MOST_HOSTED}"}]
        for one in told:
            self._meet_site(node, one if isinstance(one, dict) else {}, hosted=True)

    def _meet_site(self, node: int, facts: dict[str, Any], hosted: bool) -> None:
        known = self._names.get(node, "")
        claimed = str(facts.get("name", ""))
        name = known if self.registered and not hosted else claimed
        title = shown(name, 64) or str(node)
        try:
            if "error" in facts:
                raise FedkinError(shown(facts["error"]))
            # a machine's key speaks for the names that begin with its own and a dot
            own = claimed.startswith(f"{known}.") if hosted else claimed == known
            if (self.registered or known) and not own:
                raise FedkinError(f"its key is that of '{known}', not of '{shown(claimed, 64)}'")
            if facts.get("leaving") is True:
                self._leave(node, name, facts)
                return
            self.admit(facts)
            before = self.known.get(name)
            other = before and before.facts["identity"] != facts["identity"]
            if before and other and before.node in self._names:
                raise FedkinError(
                    f"another site that is connected is called '{name}'; if that was this one "
                    "before a crash, join again in two minutes"
                )
        except FedkinError as error:
            if (node, claimed) not in self._told:
                self._told.add((node, claimed))
                self.warn(f"site '{title}' cannot take part: {error}")
                self._refuse(node, claimed, str(error))
            self._refused[node] = time.monotonic()
            return
        if other:
            self.warn(f"site '{title}' is now another installation; what it remembered is lost")
        if before is None:
            self.warn(f"site '{title}' is here")
        self.known[name] = KnownSite(facts, node, hosted)
        if hosted:
            self._hosted.setdefault(node, set()).add(name)
        self.attendance.heard(name)
        self._hand_over(self._exchange.open_at(name))

    def _leave(self, node: int, name: str, facts: dict[str, Any]) -> None:
        """A site leaves for good: nobody waits for it any more."""
        self.part(facts)
        self.left.add(name)
        self.known.pop(name, None)
        self._exchange.expected -= set(self._exchange.open_at(name))
        self.warn(f"site '{name}' has left for good")
        self._refused[node] = time.monotonic()
        self._refuse(node, name, "it has left the run")

    def _refuse(self, node: int, name: str, reason: str) -> None:
        """Tell a node why a site cannot take part; no answer is expected."""
        about = {"kind": "refused", "experiment": self.hello["experiment"], "reason": reason}
        about["site"] = name[:64]
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
            if request.site not in self.left:
                self.attendance.request(request.site, i in current.answers)
        took = time.monotonic() - current.begun
        answered = f"{len(current.answers)} of {len(requests)} sites answered"
        self.debug(f"request {current.number}: {answered} in {took:.2f} s")
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
        """Send requests to the sites that are known; those to sites of one machine together."""
        current, outgoing, marks = self._exchange, [], []
        until = time.monotonic() + self.waiting.timeout
        for node, bundled, group in by_node(current, positions, self.known, self.bundle):
            asked = [current.requests[i] for i in group]
            content = tie(asked) if bundled else to_records(
                asked[0].facts, shared=asked[0].shared, own=asked[0].own
            )  # fmt: skip
            outgoing.append((node, content, "train", self.waiting.timeout))
            names = tuple(request.site for request in asked)
            marks.append(Sent(node, until, current.number, tuple(group), names, bundled))
            current.expected.update(group)
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
        for site in sent.sites if not incoming.from_link else ():
            self.attendance.heard(site)
            if stale:
                self.attendance.came_late(site)
        if stale:
            return
        content: Message | str
        try:
            content = from_records(incoming.content(), self.limit)
        except FedkinError as error:
            content = str(error)
        if sent.exchange is None:
            if not isinstance(content, str):
                self._meet(sent.node, content)
        elif incoming.lost:
            for site in sent.sites:
                self._disconnect(site, sent.node, str(content))
        else:
            count = len(sent.positions)
            if isinstance(content, str) or not sent.bundled:
                answers = [content] * count
            else:
                answers = untie(content, count)
            self._exchange.answers |= dict(zip(sent.positions, answers, strict=True))
