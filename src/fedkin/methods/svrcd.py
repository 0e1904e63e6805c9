"""SVRCD-PFL and ASVRCD-PFL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.methods.base import Chance, Count, Positive, State
from fedkin.methods.coordinate import (
    TH2,
    Coordinate,
    drift,
    momentum,
    snapshot_chance,
    step_sizes,
    th1,
)
from fedkin.methods.own_objective import OwnObjective, as_tensors
from fedkin.methods.registry import register
from fedkin.methods.scd import accelerated_step, move
from fedkin.methods.unified import own_value

Pair = tuple[Tensor, Tensor]

TUNED = ("eta", "weight", "accelerated", "th1", "th2", "gamma", "nu")


@register("svrcd")
@dataclass
class SVRCD(Coordinate):
    """SVRCD-PFL (Hanzely, Zhao & Kolar): SCD-PFL whose noise vanishes at the optimum.

    A snapshot v of both blocks, and G = grad F(v). The coin's block b takes the estimate
    (grad_b f_j(y) - grad_b f_j(v))/p_b + G_b on a fresh minibatch j, the other block takes G_b:
    y <- y - eta*g. With probability rho = p_w*batch/n, one coin for all, v <- y as it was before
    the step. w and beta_m are the y.

    A round is one communication: a step on w or a new G, with the beta steps before it; the
    first round makes the first G. In between, w moves by G alone, which everybody can follow.
    A client that is lost or not sampled stands still and keeps its snapshot: G is the mean of
    all clients' own, so estimates stay unbiased.
    """

    eta: Annotated[Positive | None, Doc("size of a step")] = None
    rho: Annotated[Chance | None, Doc("chance of a new snapshot")] = None
    corrected: Annotated[bool, Doc("false: without - grad_b f_j(v), as was printed")] = True

    def init(self, fed: Federation) -> State:
        s = super().init(fed)
        s.z, s.v, s.g = s.w.clone(), s.w.clone(), torch.zeros_like(s.w)
        # when due, y before the last step becomes the snapshot
        s.due, s.before = True, s.w.clone()
        return s

    def tuning(self, s: State, eta: float, rho: float) -> dict[str, Any]:
        """How x is made of z, v and y, and how z moves."""
        return {"accelerated": False, "th1": 0.0, "th2": 0.0, "gamma": 0.0, "nu": 1.0}

    def advance(self, fed: Federation, s: State) -> None:
        p_w, coin = self.chance(s, 1), fed.random("coin")
        rho = snapshot_chance(fed, p_w) if self.rho is None else self.rho
        t = step_sizes(s, p_w, fed.size, self.eta)
        t |= self.tuning(s, t["eta"], rho)
        lockstep = p_w + rho - p_w * rho
        steps = 0 if s.due else int(coin.geometric(lockstep)) - 1
        if s.due or coin.random() >= p_w / lockstep:
            self.renew(fed, s, steps if s.due else steps + 1, t)
        else:
            self.step_w(fed, s, steps, p_w, t)
            s.due = bool(coin.random() < rho)

    def step_w(self, fed: Federation, s: State, steps: int, p_w: float, t: dict[str, Any]) -> None:
        """Beta steps, then the estimate of w's gradient and a step along it."""
        mean = fed.mean(
            take_estimate, shared=self.sent(s), steps=steps, **t,
            **self.asked(fed, fed.sample()),
        )  # fmt: skip
        if not mean.answered:
            return
        s.before, z = self.follow(s, steps, t)
        s.w, s.z = along(mean["g"] / p_w + s.g, ahead(s.before, z, s.v, t), z, t)

    def renew(self, fed: Federation, s: State, steps: int, t: dict[str, Any]) -> None:
        """Beta steps (none when the snapshot is due), then a new snapshot and its gradient."""
        before = self.follow(s, steps - 1, t)[0] if steps else s.before
        mean = fed.mean(
            take_snapshot, shared=self.sent(s) | {"before": before}, steps=steps,
            share=1 / fed.size, corrected=self.corrected, **t, **self.asked(fed, fed.sample()),
        )  # fmt: skip
        if not mean.answered:
            return
        s.w, s.z = self.follow(s, steps, t)
        s.v, s.g, s.due = before.clone(), s.g + mean.answered / fed.size * mean["dg"], False

    def sent(self, s: State) -> dict[str, Tensor]:
        """What everybody needs to follow w."""
        return {"y": s.w, "g": s.g}

    def follow(self, s: State, steps: int, t: dict[str, Any]) -> Pair:
        """y and z of w after beta steps, in which w moves by G."""

        def still(y: Tensor, z: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, ...]:
            return *along(g, ahead(y, z, v, t), z, t), v, g

        y, z, _, _ = drift(steps, still, s.w, s.z, s.v, s.g)
        return y, z


@register("asvrcd")
@dataclass
class ASVRCD(SVRCD):
    """ASVRCD-PFL (Hanzely, Zhao & Kolar): SVRCD-PFL with momentum.

    Estimates are taken at x = th1*z + th2*v + (1 - th1 - th2)*y for both blocks;
    y <- x - eta*g, z <- nu*z + (1 - nu)*x - gamma*g. th2 = 1/2,
    th1 = min(1/2, sqrt(eta*mu*max(1/2, th2/rho))), gamma = 1/max(2*mu, 4*th1/eta),
    nu = 1 - gamma*mu. A client that missed the last snapshot makes x with its own v.

    With `switch` it begins as ASCD-PFL, which is the faster one far from the optimum: every so
    many rounds F is asked for, and once it is not lower than it was, ASVRCD-PFL goes on from there,
    its momentum at rest.
    """

    switch: Annotated[
        Count | None, Doc("begin as ascd, and look every so many rounds whether F still falls")
    ] = None

    def init(self, fed: Federation) -> State:
        s = super().init(fed)
        s.switched, s.since, s.lowest = self.switch is None, 0, None
        return s

    def advance(self, fed: Federation, s: State) -> None:
        if s.switched:
            super().advance(fed, s)
            return
        accelerated_step(self, fed, s, self.eta)
        s.since += 1
        if s.since < (self.switch or 1):
            return
        asked = fed.mean(own_value, shared={"w": s.w}, kept="beta", **self.asked(fed, fed.sample()))
        if not asked.answered:
            return
        now = float(asked["value"])
        s.switched, s.since, s.lowest = s.lowest is not None and now >= s.lowest, 0, now
        if s.switched:
            fed.map(rest, **self.asked(fed))
            s.z, s.before = s.w.clone(), s.w.clone()

    def tuning(self, s: State, eta: float, rho: float) -> dict[str, Any]:
        own = {"accelerated": True, "th1": th1(eta, s.mu, rho), "th2": TH2}
        return own | momentum(eta, s.mu, rho)

    def sent(self, s: State) -> dict[str, Tensor]:
        return {"y": s.w, "z": s.z, "g": s.g}


def rest(client: Client, **settings: Any) -> dict[str, Tensor]:
    """Momentum comes to rest: z <- y."""
    beta = client.recall("beta", OwnObjective(client, **settings).start)
    client.keep(z=beta)
    return {"rested": torch.ones(len(client), 1)}


def ahead(y: Tensor, z: Tensor, v: Tensor, t: Mapping[str, Any]) -> Tensor:
    """The point x at which gradients are taken."""
    if not t["accelerated"]:
        return y
    x: Tensor = (1 - t["th1"] - t["th2"]) * y + t["th1"] * z + t["th2"] * v
    return x


def along(g: Tensor, x: Tensor, z: Tensor, t: Mapping[str, Any]) -> Pair:
    """y and z after a step along g from x."""
    if not t["accelerated"]:
        return x - t["eta"] * g, z
    return move(x, z, g, t["eta"], t["gamma"], t["nu"])


class Walk:
    """A client's y, z, snapshot v and G with both blocks side by side, w first."""

    def __init__(
        self, client: Client, y: Tensor, z: Tensor | None, g: Tensor, hyper: dict[str, Any]
    ) -> None:
        self.client, self.size = client, y.shape[1]
        self.t = as_tensors(client, **{name: hyper.pop(name) for name in TUNED})
        self.f = OwnObjective(client, **hyper)
        beta = client.recall("beta", self.f.start)
        self.y, self.before = self.beside(y, beta), client.recall("before", beta)
        self.z = self.y[:, :0] if z is None else self.beside(z, client.recall("z", beta))
        self.g = self.beside(g, client.recall("g", torch.zeros_like(beta)))
        # before its first snapshot (`taken`) a client's estimate is the plain gradient
        self.v = client.recall("v", self.y)
        self.taken = client.recall("taken", torch.zeros_like(self.y[:, :1]))

    def beside(self, w: Tensor, beta: Tensor) -> Tensor:
        return torch.cat([w.expand(len(self.client), -1), beta], 1)

    def split(self, rows: Tensor) -> Pair:
        return rows[..., : self.size], rows[..., self.size :]

    @property
    def given(self) -> dict[str, Any]:
        """All that stays as it is while betas are stepped."""
        return {name: getattr(self, name) for name in ("f", "v", "taken", "g", "t")}

    def news(self, x: Tensor, block: str, f: OwnObjective, v: Tensor, taken: Tensor) -> Tensor:
        """grad_b f_j(x) - grad_b f_j(v) on one fresh minibatch j."""
        points = self.split(torch.stack([x, v]))
        here, there = f.grads(*points, self.client.next_batch(), (block,))[0].unbind()
        return here - taken * there

    def step_betas(self, steps: Any) -> None:
        def step(
            y: Tensor, z: Tensor, before: Tensor, g: Tensor, t: dict[str, Any], **given: Any
        ) -> tuple[Tensor, ...]:
            x, (by_w, by_beta) = ahead(y, z, given["v"], t), self.split(g)
            g = torch.cat([by_w, by_beta + t["weight"] * self.news(x, "beta", **given)], 1)
            return *along(g, x, z, t), self.split(y)[1]

        self.y, self.z, self.before = self.client.repeat(
            steps, step, self.y, self.z, self.before, given=self.given
        )

    def keep(self, **more: Tensor) -> None:
        beta, z = self.split(self.y)[1], self.split(self.z)[1]
        self.client.keep(beta=beta, z=z, before=self.before, **more)


def take_estimate(
    client: Client, y: Tensor, g: Tensor, steps: Any, z: Tensor | None = None, **hyper: Any
) -> dict[str, Tensor]:
    """Beta steps, then w's turn: its news, while beta moves by G."""
    walk = Walk(client, y, z, g, hyper)
    walk.step_betas(steps)
    x = ahead(walk.y, walk.z, walk.v, walk.t)
    news = walk.news(x, "w", walk.f, walk.v, walk.taken)
    walk.before = walk.split(walk.y)[1]
    walk.y, walk.z = along(walk.g, x, walk.z, walk.t)
    walk.keep()
    return {"g": news}


def take_snapshot(
    client: Client, y: Tensor, g: Tensor, before: Tensor, steps: Any, share: Any,
    z: Tensor | None = None, corrected: bool = True, **hyper: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """Beta steps, then v <- y as it was before the last of them, and the gradient there."""
    walk = Walk(client, y, z, g, hyper)
    walk.step_betas(steps)
    v = walk.beside(before, walk.before)
    by_w, by_beta = walk.f.grads(*walk.split(v))
    old = client.recall("g_w", torch.zeros_like(y))
    walk.keep(v=v, g=share * by_beta, g_w=by_w, taken=torch.full_like(walk.taken, corrected))
    return {"dg": by_w - old}
