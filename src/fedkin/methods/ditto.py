"""Ditto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Request
from fedkin.methods.base import NotNegative, State, own
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.registry import register
from fedkin.methods.shared.optimisers import Descent


@register("ditto")
@dataclass
class Ditto(FedAvg):
    """Ditto (Li et al., 2021): FedAvg, and beside it a model of one's own pulled towards x.

    From y = x, K times, on one minibatch: y <- y - lr*g_i(y),
    v_i <- v_i - lr*(g_i(v_i) + lam*(v_i - x)); x <- mean_S y. The client keeps v_i (at
    first the initial model) as its personal model. Lost clients are left out of the
    mean and keep their v_i; if nobody answers, x stays.
    """

    lam: Annotated[NotNegative, Doc("how strongly own models are pulled to the shared one")] = 0.1

    def round(self, fed: Federation, s: State) -> None:
        mean = fed.mean(
            global_and_own_steps, at=fed.sample(), shared={"x": s.x}, weights=self.weights(fed),
            lr=self.lr, lam=self.lam, **self.work,
        )  # fmt: skip
        self.advance(s, mean["dx"], mean.answered)

    def personal(self, fed: Federation, s: State) -> Request:
        return fed.request(own, shared={"x": s.x}, kept="v")


def global_and_own_steps(
    client: Client, x: Tensor, lr: Any, lam: Any, **work: Any
) -> dict[str, Tensor]:
    shared, personal = Descent(client, lr, work), Descent(client, lr, work, "own")

    def both(y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        batch = client.next_batch()
        return shared.step(y, batch), personal.step(v, batch, x, lam)

    v = client.recall("v", client.initial)
    y, v = client.repeat(shared.steps, both, client.copy(x), client.copy(v))
    client.keep(v=v)
    shared.keep()
    personal.keep()
    return {"dx": y.sub_(x)}
