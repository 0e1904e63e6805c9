"""PERM on data: the demonstration, and the shapes of the paper's figures 1 and 6."""

import math

import pytest
import torch

from fedkin.core.problem import Problem
from fedkin.data import DataConfig, load
from fedkin.methods import (
    FedAvg,
    Local,
    LocalizedFedAvg,
    PerFedAvg,
    Perm,
    PermPrinted,
    PermTwoStage,
    PFedMe,
)
from fedkin.models import build
from fedkin.runs.evaluation import score
from tests.data.conftest import real_data  # noqa: F401
from tests.helpers import federation, run


def problem_of(config, model, seed):
    data = load(config, seed)
    return Problem(build(model, data.input_shape, data.num_classes, seed), data)


def outcome(method, problem, rounds, seed):
    """Mean personal accuracy and loss, and the state."""
    fed = federation(problem, seed=seed)
    state = run(method, fed, rounds)
    found = score(fed, method.personal(fed, state))
    return found.accuracy.mean().item(), found.loss.mean().item(), state


def weight_across(alpha, groups):
    """How much clients learn from other groups than their own, on average."""
    return (alpha * (groups[:, None] != groups)).sum(1).mean().item()


@pytest.mark.parametrize("seed", range(2))
def test_turned_digits_are_learnt_with_those_turned_alike(seed):
    problem = problem_of(DataConfig(name="rotated-digits"), "mlp:64", seed)
    perm, _, state = outcome(Perm(), problem, 100, seed)
    local, _, _ = outcome(Local(lr=0.1), problem, 100, seed)
    fedavg, _, _ = outcome(FedAvg(lr=0.1), problem, 100, seed)
    assert perm > local + 0.03
    assert perm > fedavg + 0.03
    assert weight_across(state.alpha[0], problem.data.groups) < 0.15


@pytest.mark.parametrize("seed", range(2))
def test_figure_1_perm_separates_the_halves_and_beats_the_others(seed):
    problem = problem_of(DataConfig(name="perm-synthetic"), "logistic", seed)
    accuracy, loss, state = outcome(
        PermPrinted(lr=1.0, schedule="packed", step_limit=4.0), problem, 60, seed
    )
    assert weight_across(state.alpha, problem.data.groups) < 0.01
    others = (
        Local(lr=1.0),
        LocalizedFedAvg(lr=1.0),
        PerFedAvg(lr=1.0, inner_lr=1.0, tune_steps=10),
        PFedMe(lr=1.0),
    )
    for other in others:
        below, above, _ = outcome(other, problem, 60, seed)
        assert accuracy > below, other.name
        assert loss < above, other.name


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_figure_6_weights_are_diffuse_on_dealt_digits_and_sparse_on_single_classes(
    real_data,  # noqa: F811
):
    def weights(**partition):
        config = DataConfig(name="mnist", data_dir=str(real_data), num_clients=50, **partition)
        problem = problem_of(config, "mlp:200,200", 0)
        method = PermTwoStage(lr=0.05, warm_up=5, lam=1000.0)
        return run(method, federation(problem), 6).alpha, problem.data

    alpha, _ = weights(partition="iid")
    entropy = -(alpha * alpha.clamp(min=1e-300).log()).sum(1).mean()
    assert entropy > 0.97 * math.log(50)
    alpha, data = weights(partition="classes", classes_per_client=1)
    own = torch.tensor([int(data.train[i][1][0]) for i in range(50)])
    assert weight_across(alpha, own) < 1e-6
    assert ((alpha > 0).sum(1) == (own[:, None] == own).sum(1)).all()
