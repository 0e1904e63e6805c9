"""pFedHN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests
from fedkin.methods.base import NO_ONE_MODEL, Count, LocalTraining, Positive, State, use
from fedkin.methods.fedavg import local_sgd
from fedkin.methods.registry import register

WELCOMING = 20  # steps of a newcomer's embedding


@register("pfedhn")
@dataclass
class PFedHN(LocalTraining):
    """pFedHN (Shamsian et al., 2021): a network at the server that makes every client's model.

    The hypernetwork H with parameters phi turns client i's embedding v_i into its model
    theta_i = H(v_i; phi). Each sampled client, from y = theta_i: y <- y - lr*g_i(y), K times,
    and sends dy = y - theta_i. With m = |S| and J_i the derivative of theta_i,
    phi <- phi + server_lr/m*sum_S J_i(phi)^T dy_i, v_i <- v_i + server_lr/m*J_i(v_i)^T dy_i.
    Personal model: theta_i. H has one hidden layer of `hidden` units; its last layer starts at
    zero with the initial model as its bias, so that all start there. Lost clients are left out.
    """

    not_private: ClassVar[str] = "its server learns from single clients' answers"

    refuses: ClassVar[Mapping[str, str]] = {
        name: why for name, why in NO_ONE_MODEL.items() if name != "server_lr"
    }

    server_lr: Annotated[Positive, Doc("size of the hypernetwork's step")] = 1.0
    embedding: Annotated[Count, Doc("numbers that stand for a client")] = 16
    hidden: Annotated[Count, Doc("hidden units of the hypernetwork")] = 32

    def init(self, fed: Federation) -> State:
        x, g = fed.initial_model(), fed.random("hypernetwork")

        def normal(rows: int, columns: int) -> Tensor:
            numbers = torch.from_numpy(g.normal(size=(rows, columns)) / columns**0.5)
            return numbers.to(x)

        return State(
            v=normal(fed.size, self.embedding) * self.embedding**0.5,
            inner=normal(self.hidden, self.embedding), inner_bias=x.new_zeros(self.hidden),
            outer=x.new_zeros(self.hidden, len(x)), outer_bias=x,
        )  # fmt: skip

    def round(self, fed: Federation, s: State) -> None:
        who = fed.sample()
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in vars(s).items()}
            theta = make_models(who, **leaves)
        r = fed.map(local_sgd, at=who, each={"x": theta.detach()}, lr=self.lr, **self.work)
        if r.arrived.any():
            dy = r["dx"] * r.arrived.to(r["dx"])[:, None] / r.arrived.sum()
            steps = torch.autograd.grad(theta, list(leaves.values()), dy)
            for name, step in zip(leaves, steps, strict=True):
                setattr(s, name, leaves[name].detach() + self.server_lr * step)

    def personal(self, fed: Federation, s: State) -> Requests:
        everybody = torch.arange(fed.size)
        return fed.request(use, each={"model": make_models(everybody, **vars(s))})

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        """An embedding for every newcomer, the hypernetwork staying as it is.

        From the mean of all v_i, WELCOMING times: v <- v + server_lr*J(v)^T dy, with dy as in
        training. Of the models on the way the one with the lowest loss on the newcomer's training
        data is taken.
        """
        fixed = {name: value for name, value in vars(s).items() if name != "v"}
        everybody, v = torch.arange(new.size), s.v.mean(0).expand(new.size, -1)
        best: Tensor = s.outer_bias.expand(new.size, -1)
        lowest = torch.full((new.size, 1), torch.inf)
        for _ in range(WELCOMING):
            with torch.enable_grad():
                v = v.detach().requires_grad_()
                theta = make_models(everybody, v, **fixed)
            request = new.request(
                local_sgd_and_loss, each={"x": theta.detach()}, lr=self.lr, **self.work
            )
            r = new.look(request)
            loss = r["loss"].cpu()
            best = torch.where((loss < lowest).to(best.device), theta.detach(), best)
            lowest = torch.minimum(loss, lowest.to(loss))
            (step,) = torch.autograd.grad(theta, v, r["dx"])
            v = v.detach() + self.server_lr * step
        return best


def local_sgd_and_loss(client: Client, x: Tensor, lr: Any, **work: Any) -> dict[str, Tensor]:
    return {**local_sgd(client, x, lr, **work), "loss": client.full_loss(x)}


def make_models(
    who: Tensor, v: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor
) -> Tensor:
    """theta_i = H(v_i) of some clients, a row each."""
    units = torch.relu(v[who.to(v.device)] @ inner.T + inner_bias)
    return units @ outer + outer_bias
