"""Engines carry requests to clients: in process and stacked, or one by one over a wire."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

from fedkin.core.memory import Memory
from fedkin.core.problem import Problem
from fedkin.engines.embedded import Choices, Embedded
from fedkin.engines.strategy import Strategy
from fedkin.engines.wire import Wire
from fedkin.errors import FedkinError, unknown

__all__ = [
    "ENGINES", "Choices", "Choosing", "Embedded", "Strategy", "Wire", "make_engine", "need_ray",
]  # fmt: skip

ENGINES = ("embedded", "wire", "ray")


@runtime_checkable
class Choosing(Protocol):
    """An engine that chooses how it computes, and can repeat an earlier run's choices."""

    def choices(self) -> list[dict[str, Any]]: ...

    def go_on_with(self, choices: Choices) -> None: ...


def need_ray() -> None:
    """Refuse the engine ray where Ray is not installed; turn its authentication on."""
    if find_spec("ray") is None:
        raise FedkinError("engine 'ray' needs Ray: pip install 'fedkin[ray]'")
    import_module("fedkin.engines.ray")  # before Ray itself, which reads it when it is imported


def make_engine(
    name: str,
    problem: Problem,
    strategy: str = "auto",
    block_size: int | None = None,
    threads: int | None = None,
    memory: Memory | None = None,
    planned: Choices = (),
) -> Embedded | Wire:
    """An engine of this process by name; the shards of `ray` are started by a run."""
    if name == "embedded":
        return Embedded(problem, strategy, block_size, threads, memory, planned)
    if name == "ray":
        need_ray()
        raise FedkinError('the engine ray is used through runs: train(..., engine="ray")')
    if name == "wire":
        return Wire(problem, memory)
    raise unknown("engine", name, ENGINES)
