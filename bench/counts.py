"""What the unified optimisers need until 1e-4 of the gap is left: in theory, and counted."""

from __future__ import annotations

from math import log, sqrt

import torch
from torch import nn

from bench.timing import Row
from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.engines import make_engine
from fedkin.methods import ACD, ASVRCD
from fedkin.papers.mixture import optimum

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


def counts() -> list[Row]:
    """Communications and local gradients of ACD and ASVRCD on mx2: theory's and counted ones."""
    rows, problem, smooth = [], logistic(), 1 / 4 + L2
    for lam in (0.01, 0.1, 1.0):
        best, mu = optimum(problem, lam), L2 / (3 * CLIENTS)
        by_w, by_beta = lam / CLIENTS, (smooth + lam) / CLIENTS
        variance_reduced = SAMPLES + sqrt(SAMPLES * by_w / mu)
        theory: dict[type[ACD] | type[ASVRCD], tuple[float, float]] = {
            ACD: (sqrt(by_w / mu), sqrt(by_beta / mu)),
            ASVRCD: (variance_reduced, variance_reduced * by_beta / by_w),
        }
        for method, (communications, gradients) in theory.items():
            number, used = until(method(objective="mx2", lam=lam, smooth=smooth, mu=mu), best)
            rows.append({
                "method": method.name, "lam": lam, "communications": log(1 / LEFT) * communications,
                "counted": number, "gradients": log(1 / LEFT) * gradients,
                "gradients counted": used / SAMPLES if method is ACD else used,
            })  # fmt: skip
    return rows


def until(method: ACD | ASVRCD, best: float) -> tuple[int, float]:
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
