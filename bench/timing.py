"""Clocks: work run in turn, so that both sides of a ratio see the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Row = dict[str, Any]


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(ours: Callable[[], None], theirs: Callable[[], None], rounds: int) -> Row:
    """Medians of rounds run in turn, so that both see the same machine."""
    threads = torch.get_num_threads()
    for warm_up in (ours, theirs, ours):
        warm_up()
    mine, other = [], []
    for _ in range(rounds):
        mine.append(seconds(ours))
        torch.set_num_threads(threads)
        other.append(seconds(theirs))
    a, b = statistics.median(mine), statistics.median(other)
    return {"ours_ms": 1e3 * a, "bare_ms": 1e3 * b, "ratio": a / b}
