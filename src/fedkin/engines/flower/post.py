"""The server's post over Flower: who is there, letters out, answers in, nobody waited for twice."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict
from flwr.superlink.grid import HttpGrid

from fedkin.engines.flower.engine import Letter
from fedkin.engines.flower.parcels import Parcel, arrivals
from fedkin.engines.flower.records import from_records, to_records
from fedkin.engines.flower.scripts.rest import Rest
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError

LOOK_ROUND = 1.0  # seconds between looks at who is connected
HELLO_TIME = 120.0  # seconds that a hello may take; then it is said again
REFUSED_TIME = 10.0  # seconds before a site that was refused is asked again


@dataclass(frozen=True)
class Terms:
    """How long a request waits: for this share of the sites in reach, at most so many seconds."""

    wait: float = 0.8
    timeout: float = 120.0

    def __post_init__(self) -> None:
        if not 0 < self.wait <= 1:
            raise FedkinError(f"--wait must be above 0 and at most 1, not {self.wait}")
        if not 0 < self.timeout < math.inf:
            raise FedkinError(f"--timeout must be above 0 and finite, not {self.timeout}")

    def changed(self, wait: float | None, timeout: float | None) -> Terms:
        """Other terms, where some are given."""
        return Terms(
            self.wait if wait is None else wait, self.timeout if timeout is None else timeout
        )

    def enough(self, asked: int) -> int:
        return math.ceil(self.wait * asked - 1e-9)


@dataclass
class Sent:
    """A message on its way: to which node, and which letter of which exchange (None: a hello)."""

    node: int
    until: float
    exchange: int | None = None
    position: int = 0


@dataclass
class Card:
    """What a site told of itself, and where it is."""

    facts: dict[str, Any]
    node: int


@dataclass
class Exchange:
    """Letters of one request, which of them were sent, and what has come back."""

    number: int
    letters: Sequence[Letter]
    expected: set[int] = field(default_factory=set)
    answers: dict[int, Message | str] = field(default_factory=dict)

    def open_at(self, site: str) -> list[int]:
        """Positions of letters to a site that are not answered."""
        return [
            i for i, letter in enumerate(self.letters)
            if letter.site == site and i not in self.answers
        ]  # fmt: skip


class FlowerPost:
    """Letters to sites over a Flower grid.

    A site is known by its name; which node it is may change when it comes back. A site
    that let a request's time run out is not asked again before it has been heard of. `admit`
    looks at a newcomer's card and says in a FedkinError why it cannot take part. With
    `registered` a site's name is the one its key was registered under, whatever it says;
    without, sites may be there that have no such name.
    """

    def __init__(
        self,
        grid: HttpGrid,
        hello: Mapping[str, Any],
        admit: Callable[[dict[str, Any]], None],
        terms: Terms,
        limit: int,
        warn: Callable[[str], None],
        registered: bool = False,
    ) -> None:
        self.grid, self.hello, self.admit, self.terms = grid, hello, admit, terms
        self.limit, self.warn, self.registered = limit, warn, registered
        self.cards: dict[str, Card] = {}
        self._names: dict[int, str] = {}  # of nodes that are there, by their registration
        self._refused: dict[int, float] = {}
        self._sent: dict[str, Sent] = {}
        self._parcels: dict[str, Parcel] = {}
        self._exchange = Exchange(0, ())
        self._looked, self._rest = 0.0, Rest(0.03, 0.2)

    # the sites ------------------------------------------------------------------------------

    def gather(self, done: Callable[[Mapping[str, Card]], bool], seconds: float) -> bool:
        """Wait until enough sites are there; False when time is up."""
        until = time.monotonic() + seconds
        while not done(self.cards):
            if time.monotonic() > until:
                return False
            self._turn()
            for name, card in list(self.cards.items()):
                if card.node not in self._names:
                    self._miss(name, card.node, "it has left")
        return True

    def _look_round(self) -> None:
        """Say hello to every node that is connected and not known."""
        now = time.monotonic()
        if now < self._looked + LOOK_ROUND:
            return
        self._looked = now
        self._names = {node.node_id: node.name for node in self.grid.get_nodes()}
        for key, sent in list(self._sent.items()):
            if sent.exchange is None and sent.until < now and key not in self._parcels:
                del self._sent[key]
        known = {card.node for card in self.cards.values()}
        known |= {sent.node for sent in self._sent.values() if sent.exchange is None}
        for node in self._names:
            if node not in known and now >= self._refused.get(node, 0) + REFUSED_TIME:
                content = to_records({"kind": "hello", **self.hello})
                self._send([(node, content, "query", HELLO_TIME)], [Sent(node, now + HELLO_TIME)])

    def _meet(self, node: int, content: Message) -> None:
        """A node has told who it is."""
        _, facts = content
        known = self._names.get(node, "")
        name = known if self.registered else str(facts.get("name", ""))
        title = name or str(node)
        try:
            if "error" in facts:
                raise FedkinError(str(facts["error"])[:500])
            if (self.registered or known) and known != facts.get("name"):
                raise FedkinError(f"its key is that of '{known}', not of '{facts.get('name')}'")
            self.admit(facts)
            before = self.cards.get(name)
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
            self.warn(f"site '{name}' is now another installation; what it remembered is lost")
        if before is None:
            self.warn(f"site '{name}' is here")
        self.cards[name] = Card(facts, node)
        self._hand_over(self._exchange.open_at(name))

    def _refuse(self, node: int, reason: str) -> None:
        """Let a node know; what it answers does not matter."""
        about = {"kind": "refused", "experiment": self.hello["experiment"], "reason": reason}
        self._send([(node, to_records(about), "query", HELLO_TIME)], [])

    def _miss(self, name: str, node: int, reason: str) -> None:
        """A site's node is gone; it may have come back as another one meanwhile."""
        if name in self.cards and self.cards[name].node == node:
            del self.cards[name]
            self.warn(f"site '{name}' is out of reach until it is heard of again: {reason}")

    # letters ------------------------------------------------------------------------------

    def exchange(self, letters: Sequence[Letter]) -> dict[int, Message | str]:
        """Send, then wait as the terms say, also for a site that goes and comes back meanwhile;
        one that does not answer is out of reach from then on.

        When no site at all is in reach, the run waits for one to come back.
        """
        current = self._exchange = Exchange(self._exchange.number + 1, letters)
        self._hand_over(range(len(letters)))
        until = time.monotonic() + self.terms.timeout
        while not self._enough(current):
            if time.monotonic() >= until:
                self._drop_silent(current)
                until = time.monotonic() + self.terms.timeout
            self._turn()
        return current.answers

    def _enough(self, current: Exchange) -> bool:
        """Whether to go on with what has come."""
        if not current.expected:
            return bool(self.cards)
        return len(current.answers) >= self.terms.enough(len(current.expected))

    def _drop_silent(self, current: Exchange) -> None:
        silent = current.expected - set(current.answers)
        current.expected -= silent
        for letter in (current.letters[i] for i in sorted(silent)):
            if self.cards.pop(letter.site, None) is not None:
                self.warn(
                    f"site '{letter.site}' did not answer within {self.terms.timeout:g} seconds; "
                    "nobody waits for it until it is heard of again"
                )
        if not self.cards:
            self.warn("no site is in reach; waiting for one to come back")

    def _hand_over(self, positions: Iterable[int]) -> None:
        current, parcels, marks = self._exchange, [], []
        until = time.monotonic() + self.terms.timeout
        for i in positions:
            letter = current.letters[i]
            if letter.site not in self.cards:
                continue
            node = self.cards[letter.site].node
            content = to_records(letter.facts, shared=letter.shared, own=letter.own)
            parcels.append((node, content, "train", self.terms.timeout))
            marks.append(Sent(node, until, current.number, i))
            current.expected.add(i)
        self._send(parcels, marks)

    def _send(self, parcels: list[tuple[int, RecordDict, str, float]], marks: list[Sent]) -> None:
        messages = [
            FlowerMessage(content, dst_node_id=node, message_type=kind, ttl=ttl)
            for node, content, kind, ttl in parcels
        ]
        if messages:
            # what Flower does not take is given no key, and is lost as if on the way
            keys = self.grid.push_messages(messages)
            self._sent |= {key: mark for key, mark in zip(keys, marks, strict=False) if key}

    def _turn(self) -> None:
        """Once round: who is there, what has come, a moment's rest if it was nothing."""
        self._look_round()
        for parcel in arrivals(self.grid, [key for key in self._sent if key not in self._parcels]):
            self._parcels[parcel.answers_to] = parcel
        opened = 0
        for key, parcel in list(self._parcels.items()):
            sent = self._sent[key]
            stale = sent.exchange not in (None, self._exchange.number)
            if stale or parcel.fetch(self.grid, self.limit):
                del self._parcels[key], self._sent[key]
                opened += 1
                self._open(sent, parcel, stale)
                parcel.discard(self.grid)
        if opened:
            self._rest.over()
        else:
            self._rest.take()

    def _open(self, sent: Sent, parcel: Parcel, stale: bool) -> None:
        if stale:
            return
        content: Message | str
        try:
            content = from_records(parcel.content(), self.limit)
        except FedkinError as error:
            content = str(error)
        if sent.exchange is not None:
            if parcel.lost:
                self._miss(self._exchange.letters[sent.position].site, sent.node, str(content))
            else:
                self._exchange.answers[sent.position] = content
        elif not isinstance(content, str):
            self._meet(sent.node, content)
