"""APFL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Request
from fedkin.methods.base import NotNegative, Share, State
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.registry import register
from fedkin.methods.shared.optimisers import Descent


@register("apfl")
@dataclass
class APFL(FedAvg):
    """APFL (Deng et al., 2020): the personal model is a mix of an own and the shared model.

    From w_i = x, K times, on one minibatch, with mix = a_i*v_i + (1-a_i)*w_i:
    w_i <- w_i - lr*g_i(w_i), v_i <- v_i - lr*a_i*g_i(mix) and, when alpha_lr is not 0
    (adaptive alpha), a_i <- clip(a_i - alpha_lr*<v_i - w_i, g_i(mix)>, 0, 1), all with the
    values before the step; x <- mean_S w_i. The client keeps v_i (at first the initial
    model) and a_i (at first own_share); its personal model is a_i*v_i + (1-a_i)*x. Lost clients
    are left out of the mean and keep both.
    """

    former: ClassVar[Mapping[str, tuple[str, ...]]] = {"alpha": ("own_share",)}

    own_share: Annotated[Share, Doc("a_i at first, share of the own model in the mix")] = 0.5
    alpha_lr: Annotated[NotNegative, Doc("step size of a_i, 0: it stays as it is")] = 0.0

    def round(self, fed: Federation, s: State) -> None:
        mean = fed.mean(
            mixed_steps, at=fed.sample(), shared={"x": s.x}, weights=self.weights(fed),
            lr=self.lr, alpha=self.own_share, alpha_lr=self.alpha_lr, **self.work,
        )  # fmt: skip
        self.advance(s, mean["dx"], mean.answered)

    def personal(self, fed: Federation, s: State) -> Request:
        return fed.request(mix_with, shared={"x": s.x}, alpha=self.own_share)


def recall_mix(client: Client, alpha: Any) -> tuple[Tensor, Tensor]:
    """The client's v and a."""
    first = torch.zeros_like(client.initial[:, :1]) + alpha
    return client.recall("v", client.initial), client.recall("a", first)


def mixed_steps(
    client: Client, x: Tensor, lr: Any, alpha: Any, alpha_lr: Any, **work: Any
) -> dict[str, Tensor]:
    shared, personal = Descent(client, lr, work), Descent(client, lr, work, "own")

    def step(w: Tensor, v: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, mix = client.next_batch(), torch.lerp(w, v, a)
        if fixed:
            v = personal.step_along(v, mix, a, batch)
            return shared.step(w, batch), v, a
        slope = client.grad(mix, batch)
        towards_own = ((v - w) * slope).sum(1, keepdim=True)
        v, a = personal.move(v, slope, a), (a - alpha_lr * towards_own).clamp(0, 1)
        return shared.step(w, batch), v, a

    fixed = not isinstance(alpha_lr, Tensor) and alpha_lr == 0
    v, a = recall_mix(client, alpha)
    w, v, a = client.repeat(shared.steps, step, client.copy(x), client.copy(v), a)
    client.keep(v=v, a=a)
    shared.keep()
    personal.keep()
    return {"dx": w.sub_(x)}


def mix_with(client: Client, x: Tensor, alpha: Any) -> dict[str, Tensor]:
    v, a = recall_mix(client, alpha)
    return {"model": a * v + (1 - a) * x}
