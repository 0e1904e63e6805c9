"""A round on Ray shards against the embedded engine, and a million clients on two of them."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Iterator
from typing import Any

from bench.timing import Row
from bench.workloads import WORKLOADS, Ours, Workload, mlp
from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.data import DataConfig
from fedkin.methods import FedAvg
from fedkin.methods.base import use

REPEATS = 7


def shards_of(source: Any, problem: Problem, count: int) -> Federation:
    """A federation whose clients are in so many shards of a Ray on this machine."""
    from fedkin.engines.ray.connection import RaySettings
    from fedkin.engines.ray.engine import RayEngine
    from fedkin.engines.ray.shards import Shards

    shards = Shards(source, RaySettings(shards=count), print)
    shards.begin(problem)
    return Federation(problem, RayEngine(shards, "bench", "auto", None, None, ()))


def ray() -> Iterator[Row]:
    """W1-W4 on one and two shards against embedded; a request's cost; 100,000 and 1,000,000."""
    from fedkin.engines.ray.connection import RaySettings, connect

    connect(RaySettings())
    crowd = Workload("100,000 clients", lambda: mlp(60, 10), (60,), 100_000, 10, 5, 0.0)
    yield from map(against_embedded, (*WORKLOADS, crowd))
    yield million()


def against_embedded(work: Workload) -> Row:
    """Seconds of a round, interleaved: embedded, one shard, two shards."""
    method = FedAvg(lr=0.01, local_steps=work.steps)
    problem = Problem(work.module(), work.data(), batch_size=20)
    feds = [shards_of(problem.data, problem, count) for count in (1, 2)]
    contenders = [work.ours(), *(Ours(fed, method) for fed in feds)]
    spent: list[list[float]] = [[], [], []]
    for attempt in range(REPEATS + 1):
        for times, contender in zip(spent, contenders, strict=True):
            start = time.perf_counter()
            contender()
            times += [time.perf_counter() - start] if attempt else []
    embedded, one, two = (statistics.median(times) for times in spent)
    request = _request(feds[1])
    for fed in feds:
        fed.engine.shards.close_actors()  # type: ignore[attr-defined]
    return {
        "workload": work.name, "embedded_s": embedded, "one_shard_s": one, "two_shards_s": two,
        "two/embedded": two / embedded, "one/two": one / two, "request_ms": 1e3 * request,
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

    config = DataConfig(name="crowd", num_clients=1_000_000, samples=10, test_fraction=0.0)
    problem = Problem(mlp(60, 10), load_elsewhere(config, 0)[0], batch_size=20)
    fed = shards_of(Described(config, 0), problem, 2)
    ours = Ours(fed, FedAvg(lr=0.01, local_steps=5))
    ours()
    start = time.perf_counter()
    ours()
    spent = time.perf_counter() - start
    shards = fed.engine.shards  # type: ignore[attr-defined]
    peaks = [shards.call(k, "memory_used") for k in range(2)]
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    shards.close_actors()
    return {
        "workload": "1,000,000 clients", "embedded_s": float("nan"), "one_shard_s": float("nan"),
        "two_shards_s": spent, "two/embedded": float("nan"), "one/two": float("nan"),
        "request_ms": float("nan"), "peak_gb": f"driver {own / 1e9:.2f}, shards "
        + ", ".join(f"{peak / 1e9:.2f}" for peak in peaks),
    }  # fmt: skip
