"""FedDeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.batches import batches_per_pass
from fedkin.core.client import Client
from fedkin.core.federation import Federation, Request
from fedkin.methods.base import SGD_ONLY, NotNegative, Share, State, own
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.registry import register

# of the largest stable rho, what is taken when it is left out; and the most that rho*K may be then
SPARE, MOST = 0.9, 0.2


@register("feddeper")
@dataclass
class FedDeper(FedAvg):
    """FedDeper (Depersonalized Federated Learning): what is sent leans away from one's own model.

    From y = x, K times, on one minibatch, v_i as it is before its own step:
    y <- y - lr*g_i(y) - rho*(v_i + y - 2x), v_i <- v_i - lr*g_i(v_i); then
    v_i <- (1-lam)*v_i + lam*y and x <- x + mean_S(y - x). The client keeps v_i (at first
    the initial model), its personal model. `half` takes half the steps (rounded up), for a
    gradient count equal to that of other methods: FedDeper*. lam lies in [1/2, 1].

    Gradients left aside, the mean of x - v_i grows in a round by (1 + s)*(1 - p*lam), where
    s = 1 - (1 - rho)^K and p is the share of clients asked. So rho*K < p*lam/(1 - p*lam) keeps
    it stable, and rho, if left out, is the largest such value with a tenth to spare, but no more
    than .2/K: where nearly everybody takes part the condition leaves room in which x was seen
    to go astray by its gradients. Lost clients are left out of the mean and keep their v_i.
    """

    rho: Annotated[
        NotNegative | None,
        Doc("how strongly what is sent leans away from the own model; left out: as is stable"),
    ] = None
    lam: Annotated[
        Share, Doc("share of the trained shared model in the own one, at the end of a round")
    ] = 0.5
    refuses: ClassVar[Mapping[str, str]] = SGD_ONLY

    half: Annotated[bool, Doc("half the local steps, rounded up")] = False

    def steps(self, fed: Federation) -> int:
        """K, of the client that takes the most steps."""
        most = self.local_steps
        if self.local_epochs is not None:
            sizes = fed.samples.numpy()
            most = self.local_epochs * int(batches_per_pass(sizes, fed.problem.batch_size).max())
        return (most + 1) // 2 if self.half else most

    def largest_rho(self, fed: Federation) -> float:
        """Below this it is stable: p*lam/(1 - p*lam)/K, or with a server_lr in place of the 1."""
        given_back = self.lam * fed.asked / fed.size
        room = (self.server_lr if self.server_optimiser == "sgd" else 1.0) - given_back
        return min(1.0, given_back / room / self.steps(fed)) if room > 0 else 1.0

    def lean(self, fed: Federation) -> float:
        """rho: given, or the largest stable one with something to spare."""
        if self.rho is not None:
            return self.rho
        return min(SPARE * self.largest_rho(fed), MOST / self.steps(fed))

    def caution(self, fed: Federation) -> str | None:
        largest = self.largest_rho(fed)
        if self.rho is None or self.rho <= largest:
            return None
        return (
            f"rho = {self.rho:g} is beyond {largest:.3g}, up to which feddeper is stable with "
            f"{fed.asked} of {fed.size} clients in a round, {self.steps(fed)} local steps and "
            f"lam = {self.lam:g}: lower rho, or leave it out"
        )

    def round(self, fed: Federation, s: State) -> None:
        mean = fed.mean(
            depersonalised_steps, at=fed.sample(), shared={"x": s.x}, weights=self.weights(fed),
            lr=self.lr, rho=self.lean(fed), lam=self.lam, half=self.half, **self.work,
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
