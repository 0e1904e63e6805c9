"""PERM with models of different sizes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedkin.core.faults import Faults
from fedkin.core.federation import parts
from fedkin.core.problem import Problem
from fedkin.core.variants import Variant
from fedkin.methods import PermPrinted, PermTwoStage, SubmodelPermPrinted, SubmodelPermTwoStage
from fedkin.methods.shared.masks import KINDS
from fedkin.models import build
from fedkin.runs.evaluation import score
from tests.helpers import blobs, federation, run

RATES = (1.0, 0.5, 0.25)


def small_problem(**options):
    return Problem(build("mlp:24,16", (5,), 3), blobs(), **options)


def test_with_whole_models_it_is_exactly_two_stage_perm():
    common = {"lr": 0.05, "warm_up": 2, "local_steps": 3}
    faults = Faults(drop=0.2)
    a, b = (federation(small_problem(), fraction=0.7, faults=faults) for _ in range(2))
    cut = run(SubmodelPermTwoStage(rates=(1.0,), capacity_rel=0.0, **common), a, 9)
    whole = run(PermTwoStage(**common), b, 9)
    assert torch.equal(cut.alpha, whole.alpha)
    assert torch.equal(cut.v, whole.v)
    assert torch.equal(a.accounts.table, b.accounts.table)


def test_with_whole_models_the_single_loop_is_perms():
    common = {"lr": 0.05, "warm_up": 2, "local_steps": 3, "gamma": 0.3}
    a, b = (federation(small_problem(dtype=torch.float64)) for _ in range(2))
    cut = run(SubmodelPermPrinted(rates=(1.0,), capacity_rel=0.0, compare="own", **common), a, 9)
    whole = run(PermPrinted(schedule="packed", step_limit=4.0, **common), b, 9)
    torch.testing.assert_close(cut.x, whole.x)
    torch.testing.assert_close(cut.alpha, whole.alpha)
    torch.testing.assert_close(cut.v, whole.v)


def test_in_the_single_loop_w_moves_along_the_mean_over_those_who_hold_an_entry():
    problem = small_problem(dtype=torch.float64)
    fed = federation(problem)
    method = SubmodelPermPrinted(rates=RATES, kind="static", warm_up=0, gamma=0.3, scaler=False)
    start = problem.initial[0]
    state = run(method, fed, 1)
    total, held = torch.zeros_like(start), torch.zeros_like(start)
    for i, rate in enumerate(state.rates.tolist()):
        index = problem.widths.index(problem.widths.first(rate))[0]
        x, y = (t[None] for t in problem.data.train[i])
        kernel = problem.variant(Variant(rate)).kernel("autograd")
        total[index] += kernel.grad(start[index][None], x.double(), y, None)[0]
        held[index] += 1
    torch.testing.assert_close(state.x, start - 0.3 * total / held)


@pytest.mark.parametrize("compare", ["common", "own"])
def test_weights_minimise_distance_and_cost_over_clients_that_can_carry_the_model(compare):
    problem = small_problem(dtype=torch.float64)
    fed = federation(problem)
    method = SubmodelPermTwoStage(
        rates=RATES, kind="random", warm_up=1, lam=0.5, capacity_rel=0.7, compare=compare,
        scaler=False,
    )  # fmt: skip
    state = run(method, fed, 2)
    rates, sizes = state.rates.tolist(), []
    g = torch.zeros(6, problem.size, dtype=torch.float64)
    for i, rate in enumerate(rates):
        index = method.part(fed, rate, 0, torch.tensor([i]))[0]
        if compare == "common":  # everybody's gradient of the first quarter of the channels
            index = problem.widths.index(problem.widths.first(0.25))[0]
        kernel = problem.variant(Variant(0.25 if compare == "common" else rate)).kernel("autograd")
        x, y = (t[None] for t in problem.data.train[i])
        g[i, index] = kernel.grad(state.x[index][None], x.double(), y, None)[0]
        sizes.append(problem.variant(Variant(rate)).size)
    z = torch.cdist(g, g).square().numpy()
    n = problem.data.train.sizes.numpy()
    cost = np.sqrt(np.array(sizes) / n)
    unit = 0.7 * float(torch.from_numpy(z[~np.eye(6, dtype=bool)]).median())
    total = z + unit * cost / cost.mean()
    for i in range(6):
        bounds = [(0, 1 if rate >= rates[i] else 0) for rate in rates]
        found = minimize(
            lambda a, i=i: a @ total[i] + 0.5 * (a**2 / n).sum(), np.eye(6)[i], bounds=bounds,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1}, options={"ftol": 1e-12},
        )  # fmt: skip
        np.testing.assert_allclose(state.alpha[i].numpy(), found.x, atol=1e-3)


class Watched:
    """An engine that notes which client is asked to work on a model of which size."""

    def __init__(self, engine):
        self.engine, self.asked = engine, []

    def run(self, request):
        self.asked += [(client, request.variant.rate) for client in request.at.tolist()]
        return self.engine.run(request)


@pytest.mark.parametrize("cls", [SubmodelPermPrinted, SubmodelPermTwoStage])
@pytest.mark.parametrize("faults", [Faults(), Faults(drop=0.7)])
def test_no_device_is_ever_asked_to_train_a_model_larger_than_it_can_carry(cls, faults):
    # with clients so often lost weights are not learnt before the first visits
    fed = federation(small_problem(), fraction=0.7, faults=faults)
    fed.engine = Watched(fed.engine)
    method = cls(rates=RATES, warm_up=1, lam_rel=30.0, polish=0.01)
    state = run(method, fed, 12)
    method.finish(fed, state)
    rates = state.rates.tolist()
    assert {client for client, _ in fed.engine.asked} == set(range(6))
    assert all(rate <= rates[client] for client, rate in fed.engine.asked)
    alpha = method.results(state)["mixing"]
    if not faults.any():
        assert alpha[state.rates[:, None] > state.rates].max() == 0
        assert (alpha > 0).sum() > 6


def test_weights_follow_kinship_and_not_size():
    """Two kinds of clients (labels are swapped), each kind of all sizes."""
    data = blobs(clients=12, samples=60)
    other = torch.arange(12) % 2 == 1
    owner = torch.repeat_interleave(torch.arange(12), data.train.sizes)
    swapped = torch.tensor([1, 2, 0])[data.train.y]
    train = replace(data.train, y=torch.where(other[owner], swapped, data.train.y))
    device = ["1", "1", "1/2", "1/2", "1/4", "1/4"] * 2
    data = replace(data, train=train, columns={"device": device})
    fed = federation(Problem(build("mlp:24,16", (5,), 3), data))
    method = SubmodelPermTwoStage(capacity="device", warm_up=10, lr=0.05, capacity_rel=0.0)
    alpha = method.results(run(method, fed, 12))["mixing"]
    same_kind = other[:, None] == other
    assert (alpha * same_kind).sum() / alpha.sum() > 0.95


def test_scale_free_lambda_is_in_units_of_the_median_distance_alone():
    fed = federation(small_problem(dtype=torch.float64))
    method = SubmodelPermTwoStage(rates=RATES, warm_up=1, lam_rel=0.7, capacity_rel=5.0)
    state = run(method, fed, 2)
    z = torch.cdist(state.g, state.g).square()
    median = float(z[~torch.eye(6, dtype=torch.bool)].median())
    lam = 0.7 * median * float(fed.samples.double().mean())
    given = federation(small_problem(dtype=torch.float64))
    same = run(SubmodelPermTwoStage(rates=RATES, warm_up=1, lam=lam, capacity_rel=5.0), given, 2)
    torch.testing.assert_close(state.alpha, same.alpha)


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_their_own_size_visit_and_learn(kind):
    fed = federation(small_problem())
    method = SubmodelPermPrinted(rates=RATES, kind=kind, warm_up=5, lr=0.1, polish=0.01)
    state = run(method, fed, 20)
    method.finish(fed, state)
    for request in parts(method.personal(fed, state)):
        assert fed.look(request)["model"].shape[1] == fed.problem.variant(request.variant).size
    assert score(fed, method.personal(fed, state)).accuracy.mean() > 0.8
    assert torch.equal(state.v != 0, state.v.bool() & (method.factors(fed, state) > 0))
    assert set(method.results(state)) == {"mixing", "rates"}


def test_a_radius_bounds_the_models_that_clients_use():
    fed = federation(small_problem())
    method = SubmodelPermPrinted(
        rates=(0.5,), warm_up=1, radius=0.5, schedule="cyclic", sketch=64, tune_steps=0
    )
    state = run(method, fed, 7)
    (request,) = parts(method.personal(fed, state))
    assert fed.look(request)["model"].norm(dim=1).max() <= 0.5 + 1e-5
