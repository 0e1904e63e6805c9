"""PERM: weights of few and of very many clients, and a round against FedAvg's."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch

from bench.perm_size import plans, recall, spilled, weights_of_many
from bench.timing import Row, seconds
from bench.workloads import WORKLOADS, Workload
from fedkin.methods import PermPrinted
from fedkin.methods.perm_printed import gradient_at
from fedkin.methods.shared import mixing


def perm(only: str | None = None) -> Iterator[Row]:
    """PERM's weights for up to 2,000 clients, its round against FedAvg's, and very many clients
    (rows: exact, many, recall, plans, rounds, spilled)."""
    # memory first: what a process has ever used is all that can be asked
    rows: dict[str, Callable[[], Iterable[Row]]] = {
        "exact": lambda: map(weights, (500, 1_000, 2_000)),
        "many": lambda: (weights_of_many(classes=classes) for classes in (2, 10)),
        "recall": lambda: [recall(samples=samples) for samples in (200, 20)],
        "plans": plans,
        "rounds": against,
        "spilled": lambda: [spilled()],
    }
    if only not in (None, *rows):
        raise SystemExit(f"no row is called {only}: {', '.join(rows)}")
    for name, measure in rows.items():
        if only in (None, name):
            for row in measure():
                facts = ", ".join(f"{key} {_short(value)}" for key, value in row.items())
                yield {"row": name, "measured": facts}  # rows have different columns


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def against() -> Iterator[Row]:
    """PERM's round as printed against FedAvg's (the paper's figure 3)."""
    for work in WORKLOADS[:2]:
        yield against_fedavg(work, "refresh per epoch")
        yield against_fedavg(work, "refresh per round", refresh="round", gradient_batches=5)


def weights(clients: int) -> Row:
    """A refresh of everybody's weights: gradients on all data, all distances, all alphas.

    Gradients take time and memory N*d, distances N^2*d and N^2, alphas N^2*log(N) and N^2.
    """
    work = Workload("weights", WORKLOADS[3].module, (60,), clients, 100, 5, 0.0)
    fed = work.ours().fed
    x = fed.initial_model()
    ends = [time.perf_counter()]
    g = fed.map(gradient_at, shared={"x": x}, batches=None)["g"]
    ends.append(time.perf_counter())
    z = mixing.squared_distances(g)
    ends.append(time.perf_counter())
    mixing.simplex_weights(z, fed.samples, mixing.scale_free(z, fed.samples, 1.0))
    ends.append(time.perf_counter())
    parts = [later - earlier for earlier, later in pairwise(ends)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        "what": f"{clients} clients",
        **dict(zip(("gradients_s", "distances_s", "alphas_s"), parts, strict=True)),
        "total_s": ends[-1] - ends[0],
        "peak_gb": peak,
    }


def against_fedavg(work: Workload, what: str, **options: Any) -> Row:
    """Means over an epoch in which every model visits every client, rounds in turn."""
    options = {"lr": 0.01, "local_steps": work.steps, "warm_up": 0, "lam": 1e12, **options}
    ours, fedavg = work.ours(method=PermPrinted(**options)), work.ours()
    threads = torch.get_num_threads()
    for begin in (ours, fedavg):
        begin()
    mine, other = [], []
    for _ in range(work.clients):
        mine.append(seconds(ours))
        torch.set_num_threads(threads)
        other.append(seconds(fedavg))
    a, b = statistics.mean(mine), statistics.mean(other)
    return {"what": f"{work.name} {what}", "ours_ms": 1e3 * a, "fedavg_ms": 1e3 * b, "ratio": a / b}
