"""FedAvg and localized FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests
from fedkin.core.variants import PLAIN, Variant
from fedkin.methods.base import Averaging, CountOrZero, Positive, State, sgd
from fedkin.methods.registry import register


@register("fedavg")
@dataclass
class FedAvg(Averaging):
    """FedAvg (McMahan et al., 2017): local SGD steps, then the mean of the models.

    Each sampled client, from y = x: y <- y - lr*g_i(y), K times; x <- mean_S y.
    `weighted` weighs the mean by sample counts. Lost clients are left out of the
    mean; if nobody answers, x stays. With `optimiser` clients take other steps, with
    `server_optimiser` the server does.
    """

    def round(self, fed: Federation, s: State) -> None:
        self.average(fed, s, fed.sample())

    def average(self, fed: Federation, s: State, at: Tensor, variant: Variant = PLAIN) -> None:
        """Local steps from x, and their mean."""
        mean = fed.mean(
            local_sgd, at=at, shared={"x": s.x}, weights=self.weights(fed),
            variant=variant, lr=self.lr, **self.work,
        )  # fmt: skip
        self.advance(s, mean["dx"], mean.answered)


@register("fedavg-local")
@dataclass
class LocalizedFedAvg(FedAvg):
    """Localized FedAvg: FedAvg, then every client fine-tunes x on its own training data.

    The copy after `tune_steps` steps of size `tune_lr` (default: lr) is its personal model.
    """

    tune_steps: Annotated[CountOrZero, Doc("steps of fine-tuning on the training data")] = 10
    tune_lr: Annotated[Positive | None, Doc("their size (none: lr)")] = None

    def personal(self, fed: Federation, s: State) -> Requests:
        lr = self.lr if self.tune_lr is None else self.tune_lr
        return fed.request(
            fine_tune, shared={"x": s.x}, lr=lr, local_steps=self.tune_steps, **self.moves
        )


def local_sgd(client: Client, x: Tensor, lr: Any, **work: Any) -> dict[str, Tensor]:
    return {"dx": sgd(client, x, lr, work).sub_(x)}  # in memory of its own


def fine_tune(client: Client, x: Tensor, lr: Any, **work: Any) -> dict[str, Tensor]:
    return {"model": sgd(client, x, lr, work)}
