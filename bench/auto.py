"""What `auto` chooses while other processes keep the machine busy."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from bench.models import MODELS
from bench.timing import Row, seconds
from bench.workloads import WORKLOADS, Workload, chosen
from fedkin.engines.strategy import candidates

BUSY, TRIES = 2, 10
# a strategy's time is the mean of some rounds: twenty, or two where a round takes longer than that
ROUNDS, LONG_ROUNDS, LONG = 20, 2, 0.05
NEAR = 1.15
WORKS = (WORKLOADS[0], WORKLOADS[1], MODELS[0])


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Other processes that compute without end."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def auto(only: str | None = None) -> Iterator[Row]:
    """How often `auto` chooses within 15 % of the best while two other processes are busy."""
    with busy(BUSY):
        for work in chosen(WORKS, only):
            yield tried(work)


def mean_of(round_: Callable[[], None]) -> float:
    """Mean seconds of some rounds: other work slows single ones down, and users wait for all."""
    first = seconds(round_)
    others = (LONG_ROUNDS if first > LONG else ROUNDS) - 1
    return statistics.mean((first, *(seconds(round_) for _ in range(others))))


def tried(work: Workload) -> Row:
    """Ten choices, and what each strategy takes; all are measured in turn, in every try."""
    problem, threads = work.ours().fed.problem, torch.get_num_threads()
    names = [str(s) for s in candidates(problem, work.clients, threads)]
    rounds = {name: work.ours(name) for name in names}
    spent: dict[str, list[float]] = {name: [] for name in names}
    choices = []
    for attempt in range(TRIES):
        fresh = work.ours()
        fresh()
        choices.append(str(fresh.fed.engine.chosen))  # type: ignore[attr-defined]
        for name, round_ in rounds.items():
            if not attempt:
                round_()
            spent[name].append(mean_of(round_))
            torch.set_num_threads(threads)
    medians = {name: statistics.median(own) for name, own in spent.items()}
    best = min(medians, key=lambda name: medians[name])
    lost = [medians[name] / medians[best] for name in choices]
    return {
        "workload": work.name, "within 15 %": f"{sum(x <= NEAR for x in lost)}/{TRIES}",
        "worst": max(lost), "best": best, "most often": statistics.mode(choices),
    }  # fmt: skip
