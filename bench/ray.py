"""A round on Ray shards against the embedded engine, and a million clients on two of them."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from bench.timing import Row
from bench.workloads import WORKLOADS, Ours, Workload, mlp
from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.data import DataConfig
from fedkin.engines import Embedded
from fedkin.methods import FedAvg
from fedkin.methods.base import use

REPEATS, REPEATS_OF_CROWD = 7, 3
CROWD = Workload("100,000 clients", lambda: mlp(60, 10), (60,), 100_000, 10, 5, 0.0)
MILLION = "1,000,000 clients"


def shards_of(source: Any, problem: Problem, count: int) -> Federation:
    """A federation whose clients are in so many shards, each with one core."""
    from fedkin.engines.ray.connection import RaySettings
    from fedkin.engines.ray.engine import RayEngine
    from fedkin.engines.ray.shards import Shards

    shards = Shards(source, RaySettings(shards=count, timeout=120), print)
    shards.cpus = count  # a single shard would take all cores, and leave none to the others
    shards.begin(problem)
    return Federation(problem, RayEngine(shards, "bench", "auto", None, None, ()))


def ray(only: str | None = None) -> Iterator[Row]:
    """W1-W4 on one and two shards against embedded; a request's cost; 100,000 and 1,000,000.

    The cluster is that of RAY_ADDRESS, or one of this machine.
    """
    works = {work.name: work for work in (*WORKLOADS, CROWD)}
    if only not in (None, MILLION, *works):
        raise SystemExit(f"no row is called {only}: {', '.join((*works, MILLION))}")
    join()
    for name, work in works.items():
        if only in (None, name):
            yield against_embedded(work)
    if only in (None, MILLION):
        yield million()


def join() -> None:
    """The cluster that the environment names, or three cores' worth of a Ray on this machine.

    One shard and two more are there at once, and take turns.
    """
    from fedkin.engines.ray.connection import RaySettings, connect

    connect(RaySettings(os.environ.get("RAY_ADDRESS")), cpus=3)


def against_embedded(work: Workload) -> Row:
    """Seconds of a round, interleaved: embedded on one core and on all, one shard, two shards."""
    cores = torch.get_num_threads()
    method = FedAvg(lr=0.01, local_steps=work.steps)
    problem = Problem(work.module(), work.data(), batch_size=20)
    feds = [shards_of(problem.data, problem, count) for count in (1, 2)]
    engines = [Embedded(problem, "auto", None, threads) for threads in (1, cores)]
    contenders = [Ours(Federation(problem, e), method) for e in engines]
    contenders += [Ours(fed, method) for fed in feds]
    spent: list[list[float]] = [[] for _ in contenders]
    repeats = REPEATS_OF_CROWD if work is CROWD else REPEATS
    for attempt in range(repeats + 2):  # the first two choose a strategy
        for times, contender in zip(spent, contenders, strict=True):
            start = time.perf_counter()
            contender()
            times += [time.perf_counter() - start] if attempt > 1 else []
    core, embedded, one, two = (1e3 * statistics.median(times) for times in spent)
    request = _request(feds[1])
    for fed in feds:
        fed.engine.shards.close_actors()  # type: ignore[attr-defined]
    return {
        "workload": work.name, "one_core_ms": core, "embedded_ms": embedded, "one_shard_ms": one,
        "two_shards_ms": two, "two/embedded": two / embedded, "one/two": one / two,
        "request_ms": 1e3 * request,
    }  # fmt: skip


def _request(fed: Federation) -> float:
    """Seconds of a request in which clients do nothing."""
    model = fed.initial_model()[:1]
    times = []
    for _ in range(20):
        start = time.perf_counter()
        fed.mean(use, shared={"model": model})
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def million() -> Row:
    """A FedAvg round of a million clients that are never in one process."""
    from fedkin.data.shards import load_elsewhere
    from fedkin.engines.ray.shard import Described

    config = DataConfig(name="crowd", num_clients=1_000_000, samples=10, dim=60, test_fraction=0.0)
    problem = Problem(mlp(60, 10), load_elsewhere(config, 0).data, batch_size=20)
    fed = shards_of(Described(config, 0), problem, 2)
    ours = Ours(fed, FedAvg(lr=0.01, local_steps=5))
    ours()
    start = time.perf_counter()
    ours()
    spent = time.perf_counter() - start
    shards = fed.engine.shards  # type: ignore[attr-defined]
    peaks = [shards.call(k, "memory_used") for k in range(2)]
    nodes = {shards.call(k, "node") for k in range(2)}
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    shards.close_actors()
    return {
        "workload": MILLION, "round_s": spent, "us_per_client": 1e6 * spent / problem.num_clients,
        "nodes": len(nodes), "driver_gb": own / 1e9,
        **{f"shard{k + 1}_gb": peak / 1e9 for k, peak in enumerate(peaks)},
    }  # fmt: skip
