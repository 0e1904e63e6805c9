"""Engines carry requests to clients: in process and stacked, or one by one over a wire."""

from __future__ import annotations

from fedkin.core.memory import Memory
from fedkin.core.problem import Problem
from fedkin.engines.embedded import Choices, Embedded
from fedkin.engines.strategy import Strategy
from fedkin.engines.wire import Wire
from fedkin.errors import unknown

__all__ = ["ENGINES", "Choices", "Embedded", "Strategy", "Wire", "make_engine"]

ENGINES = ("embedded", "wire")


def make_engine(
    name: str,
    problem: Problem,
    strategy: str = "auto",
    block_size: int | None = None,
    threads: int | None = None,
    memory: Memory | None = None,
    planned: Choices = (),
) -> Embedded | Wire:
    """An engine by name."""
    if name == "embedded":
        return Embedded(problem, strategy, block_size, threads, memory, planned)
    if name == "wire":
        return Wire(problem, memory)
    raise unknown("engine", name, ENGINES)
