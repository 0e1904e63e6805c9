"""What the unified optimisers need until 1e-4 of the gap is left: in theory, and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from math import log, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

from bench.timing import Row
from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.engines import make_engine
from fedkin.methods import ACD, ASVRCD, SVRCD
from fedkin.methods.coordinate import Coordinate
from fedkin.methods.shared.objectives import Constants

LEFT, CLIENTS, SAMPLES, DIMENSION, L2 = 1e-4, 10, 20, 4, 0.05


def logistic() -> Problem:
    """Logistic regression on inputs of length one; every client has a true model of its own."""
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    parts, common = [], normal(DIMENSION)
    for _ in range(CLIENTS):
        own, x = common + normal(DIMENSION), normal(SAMPLES, DIMENSION)
        x = x / x.norm(dim=1, keepdim=True)
        parts.append((x, (x @ own > 0).long()))
    module = nn.Linear(DIMENSION, 1, bias=False)
    nn.init.zeros_(module.weight)
    data = ClientData(Examples.of(parts), Examples.of(parts), 2)
    return Problem(module, data, "logistic", L2, batch_size=1, dtype=torch.float64)


class Case(NamedTuple):
    """An objective, its settings, its constants as published, and F written out once more."""

    name: str
    settings: dict[str, Any]
    constants: Constants
    own: Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Tensor]


def cases() -> list[Case]:
    """Losses are L'-smooth and mu'-strongly convex; w is W*sqrt(M) where objectives rescale it."""
    L, mu, M, a = 1 / 4 + L2, L2, CLIENTS, 0.3

    def apart(lam: float, W: Tensor, beta: Tensor) -> Tensor:
        return lam / 2 * (beta - W).square().sum()

    def mixture(lam: float, f: Callable[[Tensor], Tensor], W: Tensor, beta: Tensor) -> Tensor:
        return f(beta) + apart(lam, W, beta)

    found = [
        Case(
            "mx2", {"lam": lam}, Constants(mu / (3 * M), lam / M, (L + lam) / M),
            partial(mixture, lam),
        )
        for lam in (0.01, 0.1, 1.0)
    ]  # fmt: skip
    # lam/(2M) is mt2's mu while lam <= 2mu'
    return [
        *found,
        Case("mt2", {"lam": 0.1}, Constants(0.1 / (2 * M), (L + 0.1) / M, (L + 0.1) / M),
             lambda f, W, beta: f(W) + f(beta) + apart(0.1, W, beta)),
        Case("apfl2", {"w_share": a},
             Constants(mu * (1 - a) ** 2 / (2 * M), (1 + a**2) * L / M, (1 - a) ** 2 * L / M),
             lambda f, W, beta: f(W) + f((1 - a) * beta + a * W)),
        Case("ws2", {"shared_parts": "0:2"}, Constants(mu / M, L / M, L / M),
             lambda f, W, beta: f(torch.cat([W[:2], beta[2:]]))),
        Case("traditional", {}, Constants(mu, L, 0.0), lambda f, W, beta: f(W)),
    ]  # fmt: skip


def least(case: Case, problem: Problem) -> float:
    """The minimum of F, by L-BFGS."""
    train = problem.data.train

    def loss(m: int, v: Tensor) -> Tensor:
        x, y = train[m]
        value = F.binary_cross_entropy_with_logits(x @ v, y.double())
        return value + L2 / 2 * v.square().sum()

    def both(flat: Any) -> tuple[float, Any]:
        at = torch.tensor(flat, requires_grad=True)
        W, *betas = at.view(CLIENTS + 1, DIMENSION)
        parts = [case.own(partial(loss, m), W, beta) for m, beta in enumerate(betas)]
        value = torch.stack(parts).mean()
        return value.item(), torch.autograd.grad(value, at)[0].numpy()

    exact = {"ftol": 1e-16, "gtol": 1e-10, "maxiter": 10_000}
    start = np.zeros((CLIENTS + 1) * DIMENSION)
    return float(minimize(both, start, jac=True, method="L-BFGS-B", options=exact).fun)


def counts() -> list[Row]:
    """Communications and local gradients of ACD, SVRCD and ASVRCD: theory's and counted ones."""
    rows, problem = [], logistic()
    for case in cases():
        best, (mu, by_w, by_beta) = least(case, problem), astuple(case.constants)
        reduced, accelerated = SAMPLES + by_w / mu, SAMPLES + sqrt(SAMPLES * by_w / mu)
        theory: dict[type[Coordinate], tuple[float, float]] = {
            ACD: (sqrt(by_w / mu), sqrt(by_beta / mu)),
            SVRCD: (reduced, reduced * by_beta / by_w),
            ASVRCD: (accelerated, accelerated * by_beta / by_w),
        }
        for method, (communications, gradients) in theory.items():
            number, used = until(
                method(objective=case.name, mu=mu, L_w=by_w, L_beta=by_beta, **case.settings), best
            )
            rows.append({
                "objective": case.name, "lam": case.settings.get("lam", "-"), "method": method.name,
                "communications": log(1 / LEFT) * communications, "counted": number,
                "gradients": log(1 / LEFT) * gradients,
                "gradients counted": used / SAMPLES if method is ACD else used,
            })  # fmt: skip
    return rows


def until(method: Coordinate, best: float) -> tuple[int, float]:
    """Rounds, and samples that a client looked at, until so little of the gap is left."""
    problem = logistic()
    fed = Federation(problem, make_engine("embedded", problem, "stacked"), 0)
    state, number = method.init(fed), 0
    first = now = method.value(fed, state) - best
    while now >= LEFT * first:
        number += 1
        fed.begin_round(number)
        method.round(fed, state)
        now = method.value(fed, state) - best
    return number, fed.accounts.total("samples") / CLIENTS
