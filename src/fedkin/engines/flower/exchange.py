"""One request to many sites: how long it waits, what was sent, what has come back."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedkin.engines.flower.engine import SiteRequest
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError


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
    """A message on its way: to which node, and which requests of which exchange (None: a hello).

    `bundled`: it carries requests to several sites of one machine, and so does its answer.
    """

    node: int
    until: float
    exchange: int | None = None
    positions: tuple[int, ...] = ()
    sites: tuple[str, ...] = ()
    bundled: bool = False


@dataclass
class KnownSite:
    """A connected site: its description of itself, its Flower node, and whether that node is a
    machine that answers for several sites."""

    facts: dict[str, Any]
    node: int
    hosted: bool = False


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


def by_node(
    exchange: Exchange, positions: Iterable[int], known: Mapping[str, KnownSite], most: int
) -> list[tuple[int, bool, list[int]]]:
    """The requests of each message to a node: one to a site, or up to `most` to a machine's."""
    found: list[tuple[int, bool, list[int]]] = []
    filling: dict[int, list[int]] = {}
    for i in positions:
        site = known.get(exchange.requests[i].site)
        if site is None:
            continue
        group = filling.get(site.node) if site.hosted else None
        if group is None or len(group) >= most:
            group = filling[site.node] = []
            found.append((site.node, site.hosted, group))
        group.append(i)
    return found
