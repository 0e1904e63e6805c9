"""Thirty seeds in lockstep against one: W1, and the fig. 1 problem of the unified paper."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bench.workloads import WORKLOADS
from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.engines import Embedded
from fedkin.engines.lockstep import Lockstep
from fedkin.methods import FedAvg, Method
from fedkin.papers.unified import FIGURE_1, L2SGD, PFEDME
from fedkin.papers.unified_images import ASCD, ASVRCD, LSGD

SEEDS = 30
# the five cases, the longest first
PLACES = (2, 1, 4, 3, 0)


def fig1_cases() -> list[tuple[str, list[Problem], Method]]:
    """The paper's five methods as the recipe has them, in its middle panel, s = .3."""
    panel = next(panel for panel in FIGURE_1.panels if panel.name == "mixture-s0.3")
    cases = []
    for line in panel.lines:
        if line.label in (LSGD, ASCD, ASVRCD, PFEDME, L2SGD):
            configs = [entry.config for own, entry in panel.runs(SEEDS) if own is line]
            problems = [config.make_problem(config.make_data()) for config in configs]
            cases.append((f"fig1 {line.method}", problems, configs[0].make_method()))
    return cases


def w1_problem() -> Problem:
    return Problem(WORKLOADS[0].module(), WORKLOADS[0].data(), batch_size=20)


def live(fed: Federation, method: Method, rounds: int) -> None:
    state = method.init(fed)
    for number in range(1, rounds + 1):
        fed.begin_round(number)
        method.round(fed, state)


def one(problem: Problem, method: Method, rounds: int) -> float:
    """Seconds of a run alone, after a few rounds in which it finds its strategy."""
    fed = Federation(problem, Embedded(problem))
    live(fed, method, 3)
    start = time.perf_counter()
    live(fed, method, rounds)
    return time.perf_counter() - start


def together(problems: Sequence[Problem], method: Method, rounds: int) -> float:
    """Seconds of all seeds in lockstep."""
    lockstep = Lockstep(problems)
    feds = [Federation(p, lockstep.engine_of(i, "m"), seed=i) for i, p in enumerate(problems)]
    spent = 0.0
    for count in (3, rounds):
        runs: list[Callable[[], None]] = [
            lambda fed=fed, count=count: live(fed, method, count)  # type: ignore[misc]
            for fed in feds
        ]
        start = time.perf_counter()
        for error in lockstep.together(runs):
            if error is not None:
                raise error
        spent = time.perf_counter() - start
    return spent


def lockstep() -> list[dict[str, Any]]:
    """30 seeds in lockstep against one: at most 8x on W1, and 4x on the fig. 1 problem."""
    w1 = [w1_problem() for _ in range(SEEDS)]
    cases: list[tuple[str, list[Problem], Method, int, float]]
    cases = [("W1 fedavg", w1, FedAvg(lr=0.01, local_steps=20), 20, 8.0)]
    cases += [(*case, 200, 4.0) for case in fig1_cases()]
    rows: list[dict[str, Any]] = []
    for title, problems, method, rounds, target in cases:
        alone, all_ = one(problems[0], method, rounds), together(problems, method, rounds)
        rows.append(_line(title, alone, all_, target))
    alone, all_ = (sum(row[key] for row in rows[1:]) for key in ("one_s", "thirty_s"))
    rows.append(_line("fig1, all five", alone, all_, 4.0))
    return [*rows, _line("the same, --jobs 2", alone, side_by_side(), 4.0)]


def side_by_side() -> float:
    """Seconds of all five methods' thirty seeds in two processes, a method at a time in each."""
    context = multiprocessing.get_context("spawn")
    left, ready = context.SimpleQueue(), context.Barrier(3)
    for place in PLACES:
        left.put(place)
    workers = [context.Process(target=_worker, args=(left, ready)) for _ in range(2)]
    for worker in workers:
        left.put(None)
        worker.start()
    ready.wait(600)
    start = time.perf_counter()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise SystemExit("a process of the two has failed")
    return time.perf_counter() - start


def _worker(left: Any, ready: Any) -> None:
    torch.set_num_threads(1)
    cases = fig1_cases()
    ready.wait(600)
    for place in iter(left.get, None):
        _, problems, method = cases[place]
        together(problems, method, 200)


def _line(title: str, one_s: float, thirty_s: float, target: float) -> dict[str, Any]:
    ratio = thirty_s / one_s
    return {
        "runs": title, "one_s": one_s, "thirty_s": thirty_s, "ratio": ratio, "target": target
    }  # fmt: skip
