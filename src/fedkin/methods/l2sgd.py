"""L2SGD+."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated, Any

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Request
from fedkin.methods.base import Chance, Method, NotNegative, Positive, Remark, Share, State, own
from fedkin.methods.registry import register


@register("l2sgd")
@dataclass
class L2SGD(Method):
    """L2SGD+ (Hanzely & Richtarik, 2020) for 1/N sum f_i(x_i) + lam/(2N) sum |x_i - xbar|^2.

    A coin before every step x_i <- x_i - lr*N*g_i; with probability p it says "average":
      N*g_i = lam*(x_i - xbar)/p - (1/p - 1)*Psi_i + J_i, Psi_i <- lam*(x_i - xbar);
    else "local": N*g_i = (g_i(x_i) - g_i(s_i))/(1 - p) + J_i + Psi_i on one minibatch.
    Both are unbiased, since J_i = grad f_i(s_i): a snapshot s_i (SVRG) instead of a gradient
    per sample, so that a client keeps four vectors however many samples it has. J_i is zero
    before the first snapshot; a coin for all renews snapshots with probability `refresh`.

    Clients meet only where the coin turns from local to average. A round is one such
    meeting: all averagings in a row, then all local steps until the coin turns. An averaging
    moves xbar by -lr*Jbar (the Psi_i sum to zero), so Jbar is sent along. The personal model
    is x_i, the global one xbar. xbar and Jbar are means over the clients that answer, which
    is exact when all do; a lost client stands still. An lr beyond p/(4*lam), up to which the
    theorem goes, is told before the run.
    """

    lr: Annotated[Positive, Doc("size of a step")] = 0.1
    lam: Annotated[NotNegative, Doc("how strongly own models are pulled to their mean")] = 0.1
    p: Annotated[Chance, Doc("probability that a step averages")] = 0.1
    refresh: Annotated[Share, Doc("probability of new snapshots in a round")] = 0.2

    def remarks(self, fed: Federation) -> tuple[Remark, ...]:
        longest = self.p / (4 * self.lam) if self.lam else inf
        if self.lr <= longest:
            return ()
        said = (
            f"lr = {self.lr:g} is beyond {longest:.3g}, up to which l2sgd is known to be stable "
            f"with lam = {self.lam:g} and p = {self.p:g}: lower lr or lam, or raise p"
        )
        return (Remark(said, unstable=True),)

    def init(self, fed: Federation) -> State:
        x = fed.initial_model()
        return State(x=x, j=torch.zeros_like(x))

    def round(self, fed: Federation, s: State) -> None:
        coin = fed.random("coin")
        mean = fed.mean(
            average_and_train, at=fed.sample(), shared={"xbar": s.x, "jbar": s.j},
            lr=self.lr, lam=self.lam, p=self.p,
            # all start alike, so the first meeting is over before it begins
            averagings=int(coin.geometric(1 - self.p)) if fed.round > 1 else 0,
            local_steps=int(coin.geometric(self.p)),
            renewals=int(coin.random() < self.refresh),
        )  # fmt: skip
        s.x, s.j = s.x + mean["dx"], s.j + mean["dj"]

    def personal(self, fed: Federation, s: State) -> Request:
        return fed.request(own, shared={"x": s.x}, kept="x")

    def global_model(self, s: State) -> Tensor:
        x: Tensor = s.x
        return x


def average_and_train(
    client: Client, xbar: Tensor, jbar: Tensor, lr: Any, lam: Any, p: Any,
    averagings: Any, local_steps: Any, renewals: Any,
) -> dict[str, Tensor]:  # fmt: skip
    x, zero = client.recall("x", client.initial), torch.zeros_like(client.initial)
    psi, snapshot, j = (client.recall(name, zero) for name in ("psi", "snapshot", "j"))
    taken = client.recall("taken", zero[:, :1])  # 1 once there is a snapshot

    def average(x: Tensor, psi: Tensor, xbar: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pull = lam * (x - xbar)
        return x - lr * (pull / p - (1 / p - 1) * psi + j), pull, xbar - lr * jbar

    def renew(*old: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, client.full_grad(x), torch.ones_like(taken)

    def train(x: Tensor, snapshot: Tensor, taken: Tensor, steady: Tensor, p: Any, lr: Any) -> Any:
        here, there = client.grad(torch.stack([x, snapshot]), client.next_batch()).unbind()
        return x - lr * ((here - taken * there) / (1 - p) + steady)

    x, psi, _ = client.repeat(averagings, average, x, psi, xbar)
    snapshot, j, taken = client.repeat(renewals, renew, snapshot, j, taken)
    given = {"snapshot": snapshot, "taken": taken, "steady": j + psi, "p": p, "lr": lr}
    x = client.repeat(local_steps, train, x, given=given)
    client.keep(x=x, psi=psi, snapshot=snapshot, j=j, taken=taken)
    return {"dx": x - xbar, "dj": j - jbar}
