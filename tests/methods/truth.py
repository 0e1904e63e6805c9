"""What methods must come to, found without them: hand-made gradients, and optima by L-BFGS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.func import functional_call

from fedkin.core.problem import Problem
from fedkin.data import DataConfig, load
from fedkin.data.clients import ClientData, Examples
from fedkin.models import build
from tests.helpers import line

# f_1 = (v - 1)^2/2 and f_2 = (2v + 2)^2/2, for tests.helpers.quadratic
XS, YS = [1.0, 2.0], [1.0, -2.0]
GRADIENTS = (lambda v: v - 1, lambda v: 4 * v + 4)
# for what must be equal but is computed in another order
ROUNDING = {"rtol": 1e-12, "atol": 1e-14}


def column(*values: float) -> Tensor:
    """Expected models of one parameter each."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


def mixture_optimum(problem: Problem, lam: float) -> Tensor:
    """argmin 1/N sum f_i(x_i) + lam/(2N) sum |x_i - xbar|^2 [N, d] for squared errors."""
    parts = [problem.data.train[i] for i in range(problem.num_clients)]
    shape = (problem.num_clients, problem.size)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.tensor(flat).view(shape).requires_grad_()
        value = lam / 2 * (x - x.mean(0)).square().sum()
        for own, (inputs, targets) in zip(x, parts, strict=True):
            value = value + (inputs @ own - targets).square().mean() / 2
        value.backward()
        return value.item(), x.grad.numpy().ravel()

    found = minimize(
        objective, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B",
        options={"maxiter": 10_000, "ftol": 1e-16, "gtol": 1e-12},
    )  # fmt: skip
    return torch.from_numpy(found.x).view(shape)


def planted(clients: int = 15, dimension: int = 4, seed: int = 0) -> tuple[Problem, list[int]]:
    """Linear regression with one of three orthogonal weight vectors per client, and which it is."""
    g = torch.Generator().manual_seed(seed)
    vectors = 3 * torch.eye(3, dimension, dtype=torch.float64)
    truth = [i % 3 for i in range(clients)]
    parts = []
    for cluster in truth:
        x = torch.randn(40, dimension, generator=g, dtype=torch.float64)
        noise = 0.1 * torch.randn(40, generator=g, dtype=torch.float64)
        parts.append((x, x @ vectors[cluster] + noise))
    data = ClientData(Examples.of(parts), Examples.of(parts), None)
    return Problem(line(dimension), data, dtype=torch.float64), truth


def planted_digits(seed: int = 0) -> tuple[Problem, Tensor]:
    """Handwritten digits at 24 clients in three groups, each with names of its own for them."""
    config = DataConfig(name="digits", num_clients=24, partition="iid", label_groups=3)
    data = load(config, seed)
    assert data.groups is not None
    return Problem(build("linear", data.input_shape, 10), data), data.groups


def weighted_objective(
    problem: Problem, weights: Sequence[float] | Tensor, vector: Tensor
) -> Tensor:
    """sum_j weights[j]*f_j(vector), by plain autograd."""
    named = {slot.name: slot.view(vector[None])[0] for slot in problem.layout.slots}
    total = problem.l2 / 2 * vector @ vector
    for j, weight in enumerate(weights):
        x, y = problem.data.train[j]
        out = functional_call(problem.spec.module, named, (x.to(problem.dtype),))
        total = total + weight * problem.spec.loss.value(out, y).mean()
    return total


def weighted_optimum(problem: Problem, weights: Sequence[float] | Tensor) -> Tensor:
    """The minimiser of sum_j weights[j]*f_j by L-BFGS."""

    def value_and_slope(v: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.tensor(v, requires_grad=True)
        value = weighted_objective(problem, weights, at)
        return value.item(), torch.autograd.grad(value, at)[0].numpy()

    tight = {"ftol": 1e-16, "gtol": 1e-10, "maxiter": 10_000}
    start = np.zeros(problem.size)
    found = minimize(value_and_slope, start, jac=True, method="L-BFGS-B", options=tight)
    return torch.from_numpy(found.x)
