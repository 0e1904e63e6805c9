"""PERM: the weights of 2,000 clients, and a round against FedAvg's (the paper's figure 3)."""

from __future__ import annotations

import resource
import statistics
import time
from itertools import pairwise
from typing import Any

import torch

from bench.timing import Row, seconds
from bench.workloads import WORKLOADS, Workload
from fedkin.methods import PermPrinted
from fedkin.methods.perm_printed import gradient_at
from fedkin.methods.shared import mixing


def perm() -> list[Row]:
    """PERM's weights for up to 2,000 clients, and its round against FedAvg's."""
    # memory first: what a process has ever used is all that can be asked
    found = [weights(clients) for clients in (500, 1_000, 2_000)]
    for work in WORKLOADS[:2]:
        found.append(against_fedavg(work, "refresh per epoch"))
        found.append(against_fedavg(work, "refresh per round", refresh="round", gradient_batches=5))
    columns = list(dict.fromkeys(name for row in found for name in row))
    return [{name: row.get(name, "") for name in columns} for row in found]


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
