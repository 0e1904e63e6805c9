"""The embedded engine's strategies, and how it chooses one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain, cycle

import pytest
import torch

from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.engines import Embedded, Strategy
from fedkin.engines.embedded import _others_wait, even
from fedkin.engines.strategy import candidates, named, without_gradients
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg, Local
from fedkin.models import build
from fedkin.runs.evaluation import score_model
from tests.helpers import blobs, run


def problem(model: str = "mlp:8") -> Problem:
    shape = (1, 8, 8) if model.startswith("cnn") else (5,)
    data = blobs(clients=6, dimension=64 if len(shape) == 3 else 5, shape=shape)
    return Problem(build(model, shape, 3, 1), data)


def test_a_strategy_is_read_back_from_its_name() -> None:
    strategy = Strategy("native", 8, 2, 1)
    assert Strategy.parse(str(strategy)) == strategy


@pytest.mark.parametrize("text", ["native:8", "native:0:1x1", "nativ:8:1x1", "fast", "native:8:1"])
def test_a_strategy_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(FedkinError):
        named(text, problem(), 6, 2, None)


def test_auto_settles_on_a_candidate_at_the_first_gradients_and_keeps_it() -> None:
    p = problem()
    engine = Embedded(p, "auto", threads=2)
    fed, method = Federation(p, engine), FedAvg()
    state = method.init(fed)
    fed.look(method.personal(fed, state))
    assert engine.chosen is None
    method.round(fed, state)
    chosen = engine.chosen
    assert chosen in candidates(p, 6, 2)
    method.round(fed, state)
    assert engine.chosen == chosen


def test_after_a_run_on_one_core_the_next_one_finds_as_many_cores_as_the_first() -> None:
    p, before = problem(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for strategy in ("native:6:1x1", "native:3:2x1", "autograd:1:1x1"):
            run(FedAvg(), Federation(p, Embedded(p, strategy)), 1)
            assert Embedded(p).threads == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_beside_other_work_what_is_sometimes_far_slower_loses_to_what_is_steady(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steady, often = Strategy("native", 6), Strategy("native", 6, 1, 2)
    now_and_then = {steady: cycle([0.020]), often: cycle([0.015, 0.015, 0.015, 0.2])}
    assert chosen_from(now_and_then, monkeypatch) == steady
    always = {steady: cycle([0.020]), often: cycle([0.015, 0.016])}
    assert chosen_from(always, monkeypatch) == often


def test_the_first_try_which_also_prepares_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    late, soon = Strategy("native", 6), Strategy("native", 6, 1, 2)
    times = {late: chain([0.25], cycle([0.010])), soon: cycle([0.020])}
    assert chosen_from(times, monkeypatch) == late


def chosen_from(
    times: dict[Strategy, Iterator[float]], monkeypatch: pytest.MonkeyPatch
) -> Strategy | None:
    """What `auto` chooses beside other work from candidates whose tries take so many seconds."""
    monkeypatch.setattr("fedkin.engines.embedded._others_wait", lambda threads: True)
    monkeypatch.setattr(Embedded, "_candidates", lambda engine, clients: list(times))
    monkeypatch.setattr(Embedded, "_time", lambda engine, trial, s, clients=None: next(times[s]))
    engine = Embedded(problem(), "auto", threads=2)
    run(FedAvg(), Federation(engine.problem, engine), 1)
    return engine.chosen


def test_choosing_leaves_no_trace_in_memory_or_accounts() -> None:
    p = problem()
    states = []
    for strategy in ("auto", "native:6:1x1"):
        fed = Federation(p, Embedded(p, strategy, threads=1))
        run(Local(lr=0.1), fed, 2)
        states.append((fed.engine.memory.tables["v"].values, fed.accounts.table))
    torch.testing.assert_close(states[0][0], states[1][0], rtol=0, atol=1e-5)
    assert torch.equal(states[0][1], states[1][1])


def test_convolutions_are_offered_one_client_per_core() -> None:
    assert Strategy("native", 1, 2) in candidates(problem("cnn:2,3,8"), 6, 2)


def test_models_with_convolutions_are_judged_on_all_cores_with_the_same_scores() -> None:
    p = Problem(build("resnet18:2", (3, 8, 8), 3), blobs(clients=6, dimension=192, shape=(3, 8, 8)))
    assert without_gradients(p, 6, 2) == Strategy("autograd", 1, 2)
    scores = [
        score_model(Federation(p, Embedded(p, "auto", threads=threads)), p.initial[0]).loss
        for threads in (1, 2)
    ]
    assert torch.equal(*scores)


@pytest.mark.parametrize(
    ("clients", "most", "workers"), [(50, 18, 2), (7, 5, 2), (3, 1, 4), (0, 2, 2)]
)
def test_workers_get_as_many_blocks_each_of_about_one_size(clients, most, workers) -> None:
    blocks = even(torch.arange(clients), most, workers)
    sizes = [len(block) for block in blocks]
    assert torch.equal(torch.cat(blocks), torch.arange(clients))
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
    assert len(blocks) % workers == 0 or len(blocks) == max(1, clients)


@pytest.mark.skipif(sys.platform != "linux", reason="known on Linux only")
def test_processes_that_keep_all_cores_busy_are_noticed() -> None:
    cores = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    end = time.monotonic() + 30
    try:
        while not _others_wait(1):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        for process in busy:
            process.kill()
            process.wait()
