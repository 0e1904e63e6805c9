"""Per-FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Request
from fedkin.errors import unknown
from fedkin.methods.base import CountOrZero, Positive, State
from fedkin.methods.fedavg import FedAvg, fine_tune
from fedkin.methods.registry import register
from fedkin.methods.shared.optimisers import Descent

VARIANTS = ("fo", "hf")


@register("perfedavg")
@dataclass
class PerFedAvg(FedAvg):
    """Per-FedAvg (Fallah et al., 2020): a model that is good after a step of adaptation.

    From w = x, K times: u = w - inner_lr*g_i(w; batch 1), then
    `fo` (first order): w <- w - lr*g_i(u; batch 2), or
    `hf` (exact): w <- w - lr*(I - inner_lr*H_i(w; batch 1)) g_i(u; batch 2);
    x <- mean_S w. The personal model is x after `tune_steps` steps of size inner_lr on
    the client's training data. Lost clients are left out of the mean.
    """

    inner_lr: Annotated[Positive, Doc("size of the step of adaptation")] = 0.1
    variant: Annotated[str, Doc("fo (first order) or hf (exact)")] = "fo"
    tune_steps: Annotated[CountOrZero, Doc("steps of adaptation before use")] = 10

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise unknown("variant of perfedavg", self.variant, VARIANTS)

    def round(self, fed: Federation, s: State) -> None:
        step = meta_steps if self.variant == "fo" else exact_meta_steps
        mean = fed.mean(
            step, at=fed.sample(), shared={"x": s.x}, weights=self.weights(fed),
            lr=self.lr, inner_lr=self.inner_lr, **self.work,
        )  # fmt: skip
        self.advance(s, mean["dx"], mean.answered)

    def personal(self, fed: Federation, s: State) -> Request:
        return fed.request(
            fine_tune, shared={"x": s.x}, lr=self.inner_lr, local_steps=self.tune_steps
        )


def meta_steps(client: Client, x: Tensor, lr: Any, inner_lr: Any, **work: Any) -> dict[str, Tensor]:
    local = Descent(client, lr, work)

    def step(w: Tensor) -> Tensor:
        return local.move(w, client.grad(w - inner_lr * client.grad(w)))

    w = client.repeat(local.steps, step, x)
    local.keep()
    return {"dx": w - x}


def exact_meta_steps(
    client: Client, x: Tensor, lr: Any, inner_lr: Any, **work: Any
) -> dict[str, Tensor]:
    local = Descent(client, lr, work)

    def step(w: Tensor) -> Tensor:
        batch = client.next_batch()
        slope = client.grad(w - inner_lr * client.grad(w, batch))
        return local.move(w, slope - inner_lr * client.hvp(w, slope, batch))

    w = client.repeat(local.steps, step, x)
    local.keep()
    return {"dx": w - x}
