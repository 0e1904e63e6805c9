"""Runs computed as one give what each gives alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.engines import Embedded
from fedkin.engines.lockstep import Lockstep, can_merge
from fedkin.methods import Method
from fedkin.methods.registry import get_method
from fedkin.models import build
from fedkin.runs.checks import usual
from tests.helpers import blobs, personal_models
from tests.helpers import make_named as make
from tests.test_common_checks import every_method

ROUNDS = 3


def problem(seed: int, batch_size: int = 6, name: str = "mlp:8") -> Problem:
    model, data = build(name, (5,), 3, seed), blobs(4, samples=20, seed=seed)
    return Problem(model, data, batch_size=batch_size, dtype=torch.float64)


def alone(method: Method, p: Problem, seed: int) -> tuple[Tensor, Tensor]:
    return finish(method, Federation(p, Embedded(p, "native:4:1x1"), seed, fraction=0.5))


def finish(method: Method, fed: Federation) -> tuple[Tensor, Tensor]:
    """Personal models and accounts after some rounds."""
    state = method.init(fed)
    for number in range(1, ROUNDS + 1):
        fed.begin_round(number)
        method.round(fed, state)
    return personal_models(method, fed, state), fed.accounts.table


def stacked(methods: list[Method], problems: list[Problem], seeds: list[int]) -> list[tuple]:
    lockstep = Lockstep(problems, "native:7:1x1")
    results: list = [None] * len(methods)

    def live(i: int) -> None:
        fed = Federation(problems[i], lockstep.engine_of(i, "method"), seeds[i], fraction=0.5)
        results[i] = finish(methods[i], fed)

    errors = lockstep.together([lambda i=i: live(i) for i in range(len(methods))])
    assert errors == [None] * len(methods)
    return results


@every_method
def test_stacked_runs_of_every_method_equal_the_same_runs_alone(name: str) -> None:
    model = usual(get_method(name))
    problems, seeds = [problem(i, name=model) for i in (0, 1, 0)], [0, 1, 2]
    methods = [make(name, lr=lr) for lr in (0.05, 0.02, 0.01)]
    for result, method, p, seed in zip(
        stacked(methods, problems, seeds), methods, problems, seeds, strict=True
    ):
        models, accounts = alone(method, p, seed)
        torch.testing.assert_close(result[0], models, rtol=0, atol=1e-9)
        assert torch.equal(result[1], accounts)


def test_runs_may_differ_in_their_number_of_local_steps() -> None:
    methods = [make("scaffold", local_steps=steps) for steps in (2, 5)]
    problems = [problem(0), problem(0)]
    for result, method in zip(stacked(methods, problems, [7, 7]), methods, strict=True):
        torch.testing.assert_close(result[0], alone(method, problems[0], 7)[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["acd", "scd", "ascd", "svrcd", "asvrcd", "l2sgd"])
def test_runs_may_differ_in_their_stretches_and_in_their_objectives_numbers(name: str) -> None:
    """Stretches between meetings are so long that most rows wait while a few go on."""
    rare = {"p": 0.1} if name == "l2sgd" else {"p_w": 0.1, "smooth": 20.0, "convex": 0.1}
    problems, seeds = [problem(i % 2) for i in range(5)], list(range(5))
    methods = [get_method(name)(lam=0.1 * (i + 1), **rare) for i in range(5)]
    for result, method, p, seed in zip(
        stacked(methods, problems, seeds), methods, problems, seeds, strict=True
    ):
        models, accounts = alone(method, p, seed)
        torch.testing.assert_close(result[0], models, rtol=0, atol=1e-9)
        assert torch.equal(result[1], accounts)


@pytest.mark.parametrize("name", ["submodel", "submodel-ditto"])
def test_smaller_models_with_masked_losses_meet_too(name: str) -> None:
    problems, seeds = [problem(0), problem(1), problem(0)], [0, 1, 2]
    kinds = ("random", "shuffled", "random")
    methods = [get_method(name)(rates=(1.0, 0.5), kind=kind, own_classes=True, scaler=True, lr=0.1)
               for kind in kinds]  # fmt: skip
    for result, method, p, seed in zip(
        stacked(methods, problems, seeds), methods, problems, seeds, strict=True
    ):
        models, accounts = alone(method, p, seed)
        torch.testing.assert_close(result[0], models, rtol=0, atol=1e-9)
        assert torch.equal(result[1], accounts)


def test_runs_on_the_same_data_share_them() -> None:
    p, q = problem(0), problem(1)
    merged = Lockstep([p, p, q]).merged
    assert len(merged.train.y) == len(p.train.y) + len(q.train.y)
    assert merged.num_clients == 12


def test_one_run_failing_leaves_the_others_to_finish() -> None:
    problems = [problem(0), problem(1)]
    lockstep = Lockstep(problems, "native:7:1x1")
    done = []

    def live(i: int) -> None:
        fed = Federation(problems[i], lockstep.engine_of(i, "method"), i)
        method = make("fedavg")
        if i == 0:
            method.round(fed, method.init(fed))
            raise ValueError("bad luck")
        done.append(finish(method, fed)[0])

    errors = lockstep.together([lambda: live(0), lambda: live(1)])
    assert isinstance(errors[0], ValueError)
    assert errors[1] is None
    alone = Federation(problems[1], Embedded(problems[1], "stacked"), 1)
    torch.testing.assert_close(done[0], finish(make("fedavg"), alone)[0])


def test_problems_that_differ_in_kind_are_not_merged() -> None:
    assert can_merge([problem(0), problem(1)])
    assert not can_merge([problem(0), problem(0, batch_size=3)])


@pytest.mark.parametrize("name", ["local", "scaffold"])
def test_memory_of_a_run_is_saved_and_restored_apart_from_the_others(name: str) -> None:
    problems = [problem(0), problem(1)]
    lockstep, method = Lockstep(problems, "native:7:1x1"), make(name)
    feds = [Federation(p, lockstep.engine_of(i, "method"), i) for i, p in enumerate(problems)]
    lockstep.together([lambda f=f: finish(method, f) and None for f in feds])
    saved = [{k: v.clone() for k, v in fed.engine.memory.state().items()} for fed in feds]
    fresh = Lockstep(problems).memory_of(1, "method")
    fresh.restore(saved[1])
    for key, value in fresh.state().items():
        assert torch.equal(value, saved[1][key])
        assert not torch.equal(value, saved[0][key]) or key.endswith("known")
