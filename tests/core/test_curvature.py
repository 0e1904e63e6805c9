"""Hessians and own fits of linear models, against autograd and L-BFGS."""

import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import nn

from fedkin.core.curvature import hessian, is_generalised_linear, own_fit
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from tests.helpers import blobs, federation, least_squares


def curvature_at(client, v):
    return {"hessian": hessian(client, v), "fit": own_fit(client)}


def binary(bias, l2=0.0, separable=False):
    """Two clients with 40 and 25 samples of three features."""
    g = torch.Generator().manual_seed(0)
    parts = []
    for n in (40, 25):
        x = torch.randn(n, 3, generator=g, dtype=torch.float64)
        noise = 0 if separable else 2 * torch.randn(n, generator=g, dtype=torch.float64)
        parts.append((x, (x @ torch.tensor([1.0, -0.5, 0.3]).double() + noise > 0).long()))
    data = ClientData(Examples.of(parts), Examples.of(parts), 2)
    model = nn.Linear(3, 1, bias=bias)
    return Problem(model, data, "logistic", l2, batch_size=4, dtype=torch.float64)


def loss_of(problem, client):
    x, y = problem.data.train[client]

    def loss(v):
        bias = v[3] if len(v) == 4 else 0.0
        value = F.binary_cross_entropy_with_logits(x @ v[:3] + bias, y.double())
        return value + problem.l2 / 2 * v.square().sum()

    return loss


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_hessians_are_autograds_and_fits_are_the_optima(bias, l2):
    problem = binary(bias, l2)
    at = torch.randn(2, problem.size, generator=torch.Generator().manual_seed(1)).double()
    found = federation(problem).map(curvature_at, each={"v": at})
    for i in range(2):
        loss = loss_of(problem, i)
        expected = torch.autograd.functional.hessian(loss, at[i])
        torch.testing.assert_close(found["hessian"][i], expected)

        def both(v, loss=loss):
            point = torch.tensor(v, requires_grad=True)
            value = loss(point)
            return value.item(), torch.autograd.grad(value, point)[0].numpy()

        best = minimize(both, at[i].numpy(), jac=True, method="L-BFGS-B", options={"gtol": 1e-10})
        torch.testing.assert_close(found["fit"][i], torch.from_numpy(best.x), rtol=1e-4, atol=1e-5)


def test_fits_to_classes_that_a_plane_separates_stay_finite():
    problem = binary(True, separable=True)
    found = federation(problem).map(curvature_at, shared={"v": problem.initial[0]})
    assert torch.isfinite(found["fit"]).all()
    assert found["fit"].abs().max() < 1e3


def test_regression_has_the_same_hessian_everywhere():
    problem = least_squares()
    found = federation(problem).map(curvature_at, shared={"v": problem.initial[0]})
    x = problem.data.train.x.view(4, 8, 3)
    torch.testing.assert_close(found["hessian"], x.mT @ x / 8)


def test_other_models_are_not_taken_for_linear_ones():
    assert is_generalised_linear(binary(True))
    assert not is_generalised_linear(Problem(nn.Linear(5, 3), blobs()))  # three outputs
    deep = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    assert not is_generalised_linear(Problem(deep, blobs()))
