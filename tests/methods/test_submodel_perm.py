"""PERM with models of different sizes."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedkin.core.faults import Faults
from fedkin.core.federation import parts
from fedkin.core.problem import Problem
from fedkin.core.variants import Variant
from fedkin.methods import PermTwoStage, SubmodelPerm
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
    cut = run(SubmodelPerm(rates=(1.0,), capacity_rel=0.0, **common), a, 9)
    whole = run(PermTwoStage(**common), b, 9)
    assert torch.equal(cut.alpha, whole.alpha)
    assert torch.equal(cut.v, whole.v)
    assert torch.equal(a.accounts.table, b.accounts.table)


def test_weights_minimise_distance_and_capacity_cost_over_the_simplex():
    problem = small_problem(dtype=torch.float64)
    fed = federation(problem)
    method = SubmodelPerm(rates=RATES, kind="random", warm_up=1, lam=0.5, capacity_rel=0.7)
    state = run(method, fed, 2)
    g = torch.zeros(6, problem.size, dtype=torch.float64)
    sizes = []
    for i, rate in enumerate(state.rates.tolist()):
        own = problem.variant(Variant(rate))
        index = method.part(fed, rate, 0, torch.tensor([i]))[0]
        x, y = (t[None] for t in problem.data.train[i])
        g[i, index] = own.kernel("autograd").grad(state.x[index][None], x.double(), y, None)[0]
        sizes.append(own.size)
    z = torch.cdist(g, g).square().numpy()
    n = problem.data.train.sizes.numpy()
    cost = np.sqrt(np.array(sizes) / n)
    unit = 0.7 * float(torch.from_numpy(z[~np.eye(6, dtype=bool)]).median())
    total = z + unit * cost / cost.mean()
    for i in range(6):
        found = minimize(
            lambda a, i=i: a @ total[i] + 0.5 * (a**2 / n).sum(), np.full(6, 1 / 6),
            bounds=[(0, 1)] * 6, constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            options={"ftol": 1e-12},
        )  # fmt: skip
        np.testing.assert_allclose(state.alpha[i].numpy(), found.x, atol=1e-3)


def test_scale_free_lambda_is_in_units_of_the_median_distance_alone():
    fed = federation(small_problem(dtype=torch.float64))
    method = SubmodelPerm(rates=RATES, warm_up=1, lam_rel=0.7, capacity_rel=5.0)
    state = run(method, fed, 2)
    z = torch.cdist(state.g, state.g).square()
    median = float(z[~torch.eye(6, dtype=torch.bool)].median())
    lam = 0.7 * median * float(fed.samples.double().mean())
    given = federation(small_problem(dtype=torch.float64))
    same = run(SubmodelPerm(rates=RATES, warm_up=1, lam=lam, capacity_rel=5.0), given, 2)
    torch.testing.assert_close(state.alpha, same.alpha)


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_their_own_size_visit_and_learn(kind):
    fed = federation(small_problem())
    method = SubmodelPerm(rates=RATES, kind=kind, warm_up=5, lr=0.1, polish=0.01)
    state = run(method, fed, 20)
    method.finish(fed, state)
    for request in parts(method.personal(fed, state)):
        assert fed.look(request)["model"].shape[1] == fed.problem.variant(request.variant).size
    assert score(fed, method.personal(fed, state)).accuracy.mean() > 0.8
    assert torch.equal(state.v != 0, state.v.bool() & (method.factors(fed, state) > 0))
    assert set(method.results(state)) == {"mixing", "rates"}


def test_a_radius_bounds_the_models_that_clients_use():
    fed = federation(small_problem())
    method = SubmodelPerm(rates=(0.5,), warm_up=1, radius=0.5, schedule="cyclic", sketch=64)
    state = run(method, fed, 7)
    (request,) = parts(method.personal(fed, state))
    assert fed.look(request)["model"].norm(dim=1).max() <= 0.5 + 1e-5
