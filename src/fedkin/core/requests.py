"""What is asked of clients, and what carries it to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from fedkin.core import rng
from fedkin.core.blocks import Block, Sums, row_bytes
from fedkin.core.guard import Guard
from fedkin.core.tables import Rows
from fedkin.core.variants import PLAIN, Variant

Step = Callable[..., dict[str, Tensor]]


@dataclass(frozen=True)
class Request:
    """A request to clients: run `step` with these arguments, each in its own row.

    Inside a step every tensor has a leading row axis: `shared` values [1, ...],
    `each` values [m, ...] with a number per client as a column [m, 1]. `held` are such rows that
    are still in the server's tables: engines get them in `each`.
    """

    step: Step
    at: Tensor
    shared: dict[str, Tensor]
    each: dict[str, Tensor]
    hyper: dict[str, Any]
    keys: rng.Bits
    remember: bool = True
    variant: Variant = PLAIN
    place: tuple[int, int] = (0, 0)  # the round, and which of its requests this is
    guard: Guard | None = None  # what clients do to their answers before they leave
    held: dict[str, Rows] = field(default_factory=dict)

    def rows(self, chosen: Tensor) -> Request:
        """The same request to some of its clients, by position."""
        each = {name: value[chosen] for name, value in self.each.items()}
        held = {name: value[chosen] for name, value in self.held.items()}
        keys = self.keys[chosen.numpy()]
        return replace(self, at=self.at[chosen], each=each, keys=keys, held=held)

    def read(self) -> Request:
        """The same with all rows from the tables in memory."""
        each = {name: value.read() for name, value in self.held.items()}
        return replace(self, each={**self.each, **each}, held={})

    def bytes_per_row(self) -> int:
        """What travels to one client: the tensors' own bytes."""
        own = row_bytes(self.each) + sum(v.row_bytes for v in self.held.values())
        return own + sum(v.element_size() * v.numel() for v in self.shared.values())


# a request to all clients; in parts where clients' models differ in size
Requests = Request | tuple[Request, ...]


def parts(asked: Requests) -> tuple[Request, ...]:
    return asked if isinstance(asked, tuple) else (asked,)


class Engine(Protocol):
    """Carries requests to clients. Knows nothing of methods."""

    def run(self, request: Request) -> Iterator[Block]:
        """The answers, block by block in a fixed order; rows that no block brings are lost."""
        ...


@runtime_checkable
class SummingEngine(Engine, Protocol):
    """An engine whose clients' answers can be added up where they are computed."""

    def sums(self, request: Request, weights: Tensor | None) -> Iterator[Sums]:
        """As `run`, added up; `weights` has one number per row of the request."""
        ...


@runtime_checkable
class SumsOnlyEngine(SummingEngine, Protocol):
    """An engine that has no client's answer, only sums: `run` is for answers that are empty."""

    sums_only: bool


@runtime_checkable
class SharingEngine(SummingEngine, Protocol):
    """An engine whose clients add their own part of the noise, before anybody sees their rows."""

    # how many clients' parts are in every sum, at least
    noise_shares: int
