"""LSGD-PFL."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client, descend
from fedkin.core.federation import Federation
from fedkin.methods.base import Count, LocalWork, Positive, State
from fedkin.methods.own_objective import OwnObjective
from fedkin.methods.registry import register
from fedkin.methods.scd import SCD
from fedkin.methods.unified import Unified


@register("lsgd")
@dataclass
class LSGD(Unified, LocalWork):
    """LSGD-PFL (Hanzely, Zhao & Kolar): local SGD on both blocks of the unified objective.

    Each sampled client, from w_m = w: (w_m, beta_m) <- (w_m, beta_m) - lr*grad f_m(w_m, beta_m)
    on a minibatch, tau times (`local_steps`); w <- mean_S w_m. The client keeps beta_m.
    Lost clients are left out of the mean.

    Both blocks step with the same lr, so that with W = w/sqrt(M) a step moves W by M times less
    than without, while beta moves as before: W is therefore w unless told otherwise. (20 clients
    of digits, 100 rounds, lr .05: ws2 on a network 92 % against 75 %, mx2 90 against 56, mt2 94
    against 60, apfl2 92 against 90.) Methods whose steps go by the smoothness rescale.

    `decrease` = a makes steps lr*a/(a + t), t the local steps of all rounds. "theorem" takes
    a = max(16 L/mu, tau) and lr = 4/(mu*a), with the constants estimated as coordinate methods
    do. `averaged`: what is used and recorded is the mean of w and beta_m over rounds, each with
    weight (a + t)^2. These numbers are those of the theorem on local SGD (Stich, 2019), of which
    LSGD-PFL is the case with two blocks; the paper's own constants may be others.
    """

    local_steps: Annotated[Count, Doc("tau, local steps in a round")] = 10
    decrease: Annotated[
        Positive | Literal["theorem"] | None,
        Doc("a of steps lr*a/(a + t); theorem: local SGD's a and lr; left out: all alike"),
    ] = None
    averaged: Annotated[bool, Doc("use the mean over rounds, later ones weighing more")] = False

    def rescales(self) -> bool:
        return bool(self.rescale)

    def init(self, fed: Federation) -> State:
        s = super().init(fed)
        s.lr, s.a, s.t = self.lr, self.decrease if isinstance(self.decrease, float) else 0.0, 0
        if self.decrease == "theorem":
            own = {f.name: getattr(self, f.name) for f in fields(Unified)}
            known = SCD(**(own | {"rescale": self.rescales()})).constants(fed)
            smooth = max(known.L_w, fed.size * known.L_beta)
            s.a = max(16 * smooth / known.mu, float(self.local_steps))
            s.lr = 4 / (known.mu * s.a)
        s.mean, s.weight = s.w.clone(), 0.0
        return s

    def advance(self, fed: Federation, s: State) -> None:
        fresh = (s.a + s.t + self.local_steps) ** 2
        pace = {"lr": s.lr, "a": s.a, "t": float(s.t)} if s.a else {"lr": self.lr}
        share = {"share": fresh / (s.weight + fresh)} if self.averaged else {}
        mean = fed.mean(
            step_both, shared={"w": s.w}, **pace, **share, **self.work,
            **self.asked(fed, fed.sample()),
        )  # fmt: skip
        s.w = s.w + mean["dw"]
        s.t, s.weight = s.t + self.local_steps, s.weight + fresh
        s.mean = s.mean + fresh / s.weight * (s.w - s.mean)  # the first weight is all there is

    def used(self, s: State) -> Tensor:
        w: Tensor = s.mean if self.averaged else s.w
        return w

    def kept(self) -> str:
        return "mean" if self.averaged else "beta"


def step_both(
    client: Client, w: Tensor, lr: Any, a: Any = None, t: Any = 0.0, share: Any = None,
    local_steps: Any = None, local_epochs: Any = None, **settings: Any,
) -> dict[str, Tensor]:  # fmt: skip
    f = OwnObjective(client, **settings)

    def step(own: Tensor, beta: Tensor, done: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_w, by_beta = f.grads(own, beta, client.next_batch())
        size = lr if a is None else lr * a / (a + done)
        return descend(own, size, by_w), descend(beta, size, by_beta), done + 1

    times = client.steps(local_steps, local_epochs)
    done = torch.zeros(len(client), 1).to(client.initial) + t
    own, beta, _ = client.repeat(times, step, w, client.recall("beta", f.start), done)
    client.keep(beta=beta)
    if share is not None:
        mean = client.recall("mean", beta)
        client.keep(mean=mean + share * (beta - mean))
    return {"dw": own - w}
