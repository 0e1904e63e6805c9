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
from fedkin.methods.base import SGD_ONLY, NotNegative, Remark, Share, State, own
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.registry import register

# of the largest stable rho, what is taken when it is left out, and from where on it is too near
SPARE, NEAR = 0.7, 0.8
# the share of FedAvg's pace below which the shared model is called slow
SLOW = 0.75


@register("feddeper")
@dataclass
class FedDeper(FedAvg):
    """FedDeper (Depersonalized Federated Learning): what is sent leans away from one's own model.

    From y = x, K times, on one minibatch, v_i as it is before its own step:
    y <- y - lr*g_i(y) - rho*(v_i + y - 2x), v_i <- v_i - lr*g_i(v_i); then
    v_i <- (1-lam)*v_i + lam*y and x <- x + mean_S(y - x). The client keeps v_i (at first
    the initial model), its personal model. `half` takes half the steps (rounded up), for a
    gradient count equal to that of other methods: FedDeper*. lam lies in [1/2, 1].

    Two things bound rho*K, whose effect on y in a round is s = 1 - (1 - rho)^K. p is the share of
    clients asked. Gradients left aside, the mean of x - v_i grows in a round by
    (1 + s)*(1 - p*lam): rho*K < p*lam/(1 - p*lam) keeps it finite. And y is pushed off the way
    that v_i goes, also where all should go it: where gradients hardly change, x moves by
      (2*s/(rho*K) - 1 - s*(1 - lam)/lam) / (1 - s*(1 - p*lam)/(p*lam))
    of what FedAvg would. With everybody asked that is at least three quarters while
    rho*K <= lam/(1 + 3*lam), and from about lam on it may be less than nothing: x goes uphill. With
    few asked it is many times FedAvg's near the first bound, and losses creep up. A rho beyond
    eight tenths of the first bound, and one with which x moves less than three quarters of
    FedAvg's way, is told before the run. Left out, rho is seven tenths of the first bound or all
    of the second, whichever is less. Lost clients are left out of the mean and keep their v_i.
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

    def stable_rho(self, fed: Federation) -> float:
        """Below this x - v_i stays finite: p*lam/(1 - p*lam)/K, or with a server_lr for the 1."""
        given_back = self.lam * fed.asked / fed.size
        room = (self.server_lr if self.server_optimiser == "sgd" else 1.0) - given_back
        return min(1.0, given_back / room / self.steps(fed)) if room > 0 else 1.0

    def brisk_rho(self, fed: Federation) -> float:
        """Up to this x keeps three quarters of FedAvg's pace, if everybody is asked."""
        return self.lam / (1 + 3 * self.lam) / self.steps(fed)

    def pace(self, fed: Federation, rho: float) -> float:
        """How far x moves in a round, of what FedAvg would, where gradients hardly change; for a
        rho that is stable."""
        s, back = 1 - (1 - rho) ** self.steps(fed), self.lam * fed.asked / fed.size
        led = 2 * s / (rho * self.steps(fed)) - 1 - s * (1 - self.lam) / self.lam
        return led / (1 - s * (1 - back) / back)

    def lean(self, fed: Federation) -> float:
        """rho: given, or as large as both bounds allow with something to spare."""
        if self.rho is not None:
            return self.rho
        return min(SPARE * self.stable_rho(fed), self.brisk_rho(fed))

    def remarks(self, fed: Federation) -> tuple[Remark, ...]:
        if not self.rho:
            return ()
        stable, uphill = self.stable_rho(fed), self.lam / self.steps(fed)
        pace = self.pace(fed, self.rho) if self.rho < stable else 0.0
        if self.rho <= NEAR * stable and pace >= SLOW:
            return ()
        asked = (
            f"{fed.asked} of {fed.size} clients in a round, {self.steps(fed)} local steps and "
            f"lam = {self.lam:g}"
        )
        if self.rho >= stable:
            what = f"is beyond {stable:.3g}, up to which feddeper is stable with {asked}"
        elif pace >= SLOW:
            what = (
                f"is close to {stable:.3g}, up to which feddeper is stable with {asked}: its "
                f"shared model moves {pace:.2g} times as far as fedavg's, and losses may creep up"
            )
        elif pace > 0:
            what = (
                f"slows feddeper's shared model down to {pace:.2g} of fedavg's pace with {asked} "
                f"(beyond {uphill:.3g} it may go uphill)"
            )
        else:
            what = f"sends feddeper's shared model uphill with {asked}"
        said = f"rho = {self.rho:g} {what}: lower rho, or leave it out"
        return (Remark(said, unstable=True),)

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
    twice = 2 * x

    def both(y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        batch = client.next_batch()
        # y - rho*(y - 2x) - rho*v
        y = client.descend_(y, lr, batch, towards=twice, pull=rho, minus=v, times=rho)
        return y, client.descend_(v, lr, batch)

    steps = client.steps(**work)
    v = client.copy(client.recall("v", client.initial))
    y, v = client.repeat((steps + 1) // 2 if half else steps, both, client.copy(x), v)
    client.keep(v=torch.lerp(v, y, lam))
    return {"dx": y.sub_(x)}
