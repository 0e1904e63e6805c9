"""FedProx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.methods.base import NotNegative, State
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.registry import register
from fedkin.methods.shared.optimisers import Descent


@register("fedprox")
@dataclass
class FedProx(FedAvg):
    """FedProx (Li et al., 2020): FedAvg whose local steps are pulled to the received model.

    From y = x: y <- y - lr*(g_i(y) + mu*(y - x)), K times; x <- mean_S y. Lost clients
    are left out of the mean; if nobody answers, x stays.
    """

    mu: Annotated[NotNegative, Doc("how strongly local models are pulled to the received one")] = (
        0.1
    )

    def round(self, fed: Federation, s: State) -> None:
        mean = fed.mean(
            proximal_sgd, at=fed.sample(), shared={"x": s.x}, weights=self.weights(fed),
            lr=self.lr, mu=self.mu, **self.work,
        )  # fmt: skip
        self.advance(s, mean["dx"], mean.answered)


def proximal_sgd(client: Client, x: Tensor, lr: Any, mu: Any, **work: Any) -> dict[str, Tensor]:
    local = Descent(client, lr, work)
    y = client.repeat(local.steps, lambda y: local.step(y, None, x, mu), client.copy(x))
    local.keep()
    return {"dx": y.sub_(x)}
