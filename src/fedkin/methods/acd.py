"""ACD-PFL."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.methods.base import State
from fedkin.methods.coordinate import Coordinate, drift
from fedkin.methods.own_objective import OwnObjective
from fedkin.methods.registry import register


@register("acd")
@dataclass
class ACD(Coordinate):
    """ACD-PFL (Hanzely, Zhao & Kolar): accelerated steps on w or on all beta, full gradients.

    A coin takes block w with probability p_w = sqrt(L_w)/(sqrt(L_w) + sqrt(L_beta)).
    x = (1 - theta)*y + theta*z for both blocks; the coin's block b, with g = grad_b F(x):
    y_b <- x_b - g/L_b, z_b <- (z_b + eta*nu*x_b - eta*p_b/L_b*g)/(1 + eta*nu);
    the other block: y <- x, z <- (z + eta*nu*x)/(1 + eta*nu).
    nu = mu*min_b p_b^2/L_b, theta = (sqrt(nu^2 + 4*nu) - nu)/2, eta = 1/theta. w and beta_m
    are the y. Lost clients are left out of the mean and stand still.
    """

    def init(self, fed: Federation) -> State:
        s = super().init(fed)
        s.z = s.w.clone()
        return s

    def advance(self, fed: Federation, s: State) -> None:
        p_w = self.chance(s, 1 / 2)
        blocks = [(p, L) for p, L in ((p_w, s.L_w), (1 - p_w, s.L_beta)) if L]
        nu = s.mu * min(p**2 / L for p, L in blocks if p)
        theta = (sqrt(nu**2 + 4 * nu) - nu) / 2
        t = {"theta": theta, "pull": nu / theta}
        steps = int(fed.random("coin").geometric(p_w)) - 1
        mean = fed.mean(
            step_betas_fully, shared={"w": s.w, "z": s.z}, steps=steps, **t,
            short=1 / (fed.size * s.L_beta) if s.L_beta else 0.0,
            long=(1 - p_w) / (theta * fed.size * s.L_beta) if s.L_beta else 0.0,
            **self.asked(fed, fed.sample()),
        )  # fmt: skip
        if not mean.answered:
            return
        y, z = drift(steps, lambda y, z: rest(y, z, **t), s.w, s.z)
        y, z = rest(y, z, **t)
        if s.L_w:
            y, z = y - mean["g"] / s.L_w, z - p_w / (theta * s.L_w * (1 + t["pull"])) * mean["g"]
        s.w, s.z = y, z


def rest(y: Tensor, z: Tensor, theta: Any, pull: Any) -> tuple[Tensor, Tensor]:
    """An iteration without a gradient: x and (z + pull*x)/(1 + pull), pull = eta*nu."""
    x = (1 - theta) * y + theta * z
    return x, (z + pull * x) / (1 + pull)


def step_betas_fully(
    client: Client, w: Tensor, z: Tensor, steps: Any, theta: Any, pull: Any, short: Any, long: Any,
    **settings: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """Beta steps, in which w drifts; then w's turn: its gradient, while beta rests."""
    f, size = OwnObjective(client, **settings), w.shape[1]
    beta = client.recall("beta", f.start)
    rows = len(client)
    y = torch.cat([w.expand(rows, -1), beta], 1)
    z = torch.cat([z.expand(rows, -1), client.recall("z", beta)], 1)

    def step(
        y: Tensor, z: Tensor, f: OwnObjective, theta: Any, pull: Any, short: Any, long: Any
    ) -> tuple[Tensor, Tensor]:
        x, z = rest(y, z, theta, pull)
        g = f.grad_beta(x[:, :size], x[:, size:])
        y = torch.cat([x[:, :size], x[:, size:] - short * g], 1)
        return y, torch.cat([z[:, :size], z[:, size:] - long / (1 + pull) * g], 1)

    given = {"f": f, "theta": theta, "pull": pull, "short": short, "long": long}
    y, z = client.repeat(steps, step, y, z, given=given)
    x, z = rest(y, z, theta, pull)
    client.keep(beta=x[:, size:], z=z[:, size:])
    return {"g": f.grad_w(x[:, :size], x[:, size:])}
