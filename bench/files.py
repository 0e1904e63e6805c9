"""What evaluating and writing cost beside training, when every round is evaluated."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from bench.long import size_mb
from bench.timing import Row
from bench.workloads import WORKLOADS, Workload
from fedkin.core.problem import Problem
from fedkin.methods import FedAvg
from fedkin.runs.progress import Progress
from fedkin.runs.train import train

ROUNDS = 40
# the same thousand clients with a few local steps, and with the twenty of W1
W4 = WORKLOADS[3]
WORKS = {"W4": W4, "W4, 20 steps": replace(W4, steps=20)}


def files(only: str | None = None) -> Iterator[Row]:
    """1,000 clients, evaluated and written after every round: that against the round's training."""
    for name, work in WORKS.items():
        if only in (None, name):
            yield {"workload": name, **shares(work)}


def shares(work: Workload) -> Row:
    """Medians over the rounds of a run with a folder."""
    problem, ends = Problem(work.module(), work.data(), batch_size=20), list[float]()

    def ended(done: Progress) -> None:
        ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as place:
        run = train(
            problem, FedAvg(lr=0.01, local_steps=work.steps), folder=Path(place) / "run",
            rounds=ROUNDS, eval_every=1, baseline=False, on_round=ended,
        )  # fmt: skip
        size = size_mb(Path(place)) / ROUNDS
    training = run.timing["seconds"].tolist()
    whole = [later - earlier for earlier, later in pairwise(ends[:-1])]
    rest = [all_ - own for all_, own in zip(whole, training[1:-1], strict=True)]
    a, b = statistics.median(rest), statistics.median(training[1:-1])
    return {"rest_ms": 1e3 * a, "training_ms": 1e3 * b, "ratio": a / b, "mb_per_round": size,
            "target": 1.0}  # fmt: skip
