"""FedDeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Request
from fedkin.methods.base import SGD_ONLY, NotNegative, Share, State, own
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.registry import register


@register("feddeper")
@dataclass
class FedDeper(FedAvg):
    """FedDeper (Depersonalized Federated Learning): what is sent leans away from one's own model.

    From y = x, K times, on one minibatch, v_i as it is before its own step:
    y <- y - lr*g_i(y) - rho*(v_i + y - 2x), v_i <- v_i - lr*g_i(v_i); then
    v_i <- (1-lam)*v_i + lam*y and x <- x + mean_S(y - x). The client keeps v_i (at first
    the initial model), its personal model. `half` takes half the steps (rounded up), for a
    gradient count equal to that of other methods: FedDeper*. rho is of the order of lr, lam
    lies in [1/2, 1]. With m of n clients in a round, and gradients left aside, x - v_i grows from
    one turn of a client to the next by about (1-lam)*(1 + rho*K) + (n/m - 1)*rho*K: keep that
    below one. Lost clients are left out of the mean and keep their v_i.
    """

    rho: Annotated[
        NotNegative, Doc("how strongly what is sent leans away from the own model, about lr")
    ] = 0.01
    lam: Annotated[
        Share, Doc("share of the trained shared model in the own one, at the end of a round")
    ] = 0.5
    refuses: ClassVar[Mapping[str, str]] = SGD_ONLY

    half: Annotated[bool, Doc("half the local steps, rounded up")] = False

    def round(self, fed: Federation, s: State) -> None:
        mean = fed.mean(
            depersonalised_steps, at=fed.sample(), shared={"x": s.x}, weights=self.weights(fed),
            lr=self.lr, rho=self.rho, lam=self.lam, half=self.half, **self.work,
        )  # fmt: skip
        self.advance(s, mean["dx"], mean.answered)

    def personal(self, fed: Federation, s: State) -> Request:
        return fed.request(own, shared={"x": s.x}, kept="v")


def depersonalised_steps(
    client: Client, x: Tensor, lr: Any, rho: Any, lam: Any, half: bool, **work: Any
) -> dict[str, Tensor]:
    def both(y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        batch, pulled = client.next_batch(), torch.lerp(y, 2 * x - v, rho)
        return client.descend_(y, lr, batch, into=pulled), client.descend_(v, lr, batch)

    steps = client.steps(**work)
    v = client.copy(client.recall("v", client.initial))
    y, v = client.repeat((steps + 1) // 2 if half else steps, both, client.copy(x), v)
    client.keep(v=(1 - lam) * v + lam * y)
    return {"dx": y - x}
