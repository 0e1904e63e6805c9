"""LSGD-PFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.methods.base import Count, LocalWork, State
from fedkin.methods.own_objective import OwnObjective
from fedkin.methods.registry import register
from fedkin.methods.unified import Unified


@register("lsgd")
@dataclass
class LSGD(Unified, LocalWork):
    """LSGD-PFL (Hanzely, Zhao & Kolar): local SGD on both blocks of the unified objective.

    Each sampled client, from w_m = w: (w_m, beta_m) <- (w_m, beta_m) - lr*grad f_m(w_m, beta_m)
    on a minibatch, tau times (`local_steps`); w <- mean_S w_m. The client keeps beta_m.
    Lost clients are left out of the mean.
    """

    local_steps: Annotated[Count, Doc("tau, local steps in a round")] = 5

    def advance(self, fed: Federation, s: State) -> None:
        mean = fed.mean(
            step_both, shared={"w": s.w}, lr=self.lr, **self.work,
            **self.asked(fed, fed.sample()),
        )  # fmt: skip
        s.w = s.w + mean["dw"]


def step_both(
    client: Client, w: Tensor, lr: Any, local_steps: Any = None, local_epochs: Any = None,
    **settings: Any,
) -> dict[str, Tensor]:  # fmt: skip
    f = OwnObjective(client, **settings)

    def step(own: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        by_w, by_beta = f.grads(own, beta, client.next_batch())
        return own - lr * by_w, beta - lr * by_beta

    times = client.steps(local_steps, local_epochs)
    own, beta = client.repeat(times, step, w, client.recall("beta", f.start))
    client.keep(beta=beta)
    return {"dw": own - w}
