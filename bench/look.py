"""What it costs to look how long a step may be, beside the shortest run that is looked at."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.timing import Row, seconds
from bench.workloads import HIDDEN, WORKLOADS, Workload, chosen
from fedkin.core.problem import Problem
from fedkin.runs.step_size import COST, SHARE, bearable


def look(only: str | None = None) -> Iterator[Row]:
    """Seconds of the look at curvature before a run, and their share of the shortest run of FedAvg
    that has one, on W2, W3 and an MLP of one small layer."""
    for work in chosen((HIDDEN, WORKLOADS[1], WORKLOADS[2]), only):
        yield {"workload": work.name, **against_shortest_run(work)}


def against_shortest_run(work: Workload) -> Row:
    problem, round_ = Problem(work.module(), work.data(), batch_size=20), work.ours()
    rounds = COST / SHARE / (work.clients * work.steps)

    def look_once() -> None:
        bearable(problem, 0)

    looks, run = [], []
    round_()
    look_once()
    for _ in range(5):
        looks.append(seconds(look_once))
        run.append(seconds(round_) * rounds)
    took = statistics.median(looks)
    return {"look_ms": 1e3 * took, "of_run": took / statistics.median(run)}
