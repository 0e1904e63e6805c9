"""FedFomo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests
from fedkin.core.variants import HELD_OUT
from fedkin.methods.base import Count, LocalTraining, Share, State, sgd, use
from fedkin.methods.registry import register
from fedkin.methods.shared.choosing import own_losses


@register("fedfomo")
@dataclass
class FedFomo(LocalTraining):
    """FedFomo (Zhang et al., 2021): every client takes of others' models what lowers its loss.

    The server keeps v_1..v_N and P, what each client found others worth. Each sampled client i
    gets `downloads` models v_j: those of the highest P_ij, each replaced with chance `explore` by
    one at random. With L_i its loss on the fifth of its training data that is kept from training
    (on what it trains on no other model is better than its own),
    w_ij = max(0, L_i(v_i) - L_i(v_j))/|v_j - v_i|, divided by their sum:
    v_i <- v_i + sum_j w_ij*(v_j - v_i), then v_i <- v_i - lr*g_i(v_i), K times; P_ij grows by
    the w_ij before max. Personal model: v_i. Lost clients keep v_i.
    """

    not_private: ClassVar[str] = "clients are given other clients' models"

    downloads: Annotated[Count, Doc("models that a client gets in a round")] = 5
    explore: Annotated[Share, Doc("chance that a model is chosen at random")] = 0.3

    def init(self, fed: Federation) -> State:
        worth = torch.zeros(fed.size, fed.size)
        return State(v=fed.initial_model().repeat(fed.size, 1), worth=worth, mixing=worth.clone())

    def round(self, fed: Federation, s: State) -> None:
        who = fed.sample()
        others = self.choose(fed, s, who)
        r = fed.map(
            take_and_train, at=who, each={"v": s.v[who], "others": s.v[others]}, lr=self.lr,
            variant=HELD_OUT, **self.work,
        )  # fmt: skip
        here = r.arrived
        if here.any():
            at, chosen = who[here], others[here]
            s.v[at] = s.v[at] + r["dv"][here]
            s.worth[at] = s.worth[at].scatter_add(1, chosen, r["worth"][here].cpu().float())
            taken = r["taken"][here].cpu().float()
            own = torch.zeros_like(s.mixing[at]).scatter_add(1, chosen, taken)
            own[torch.arange(len(at)), at] = 1 - taken.sum(1)
            s.mixing[at] = own

    def choose(self, fed: Federation, s: State, who: Tensor) -> Tensor:
        """Other clients [m, downloads] whose models each client gets: the best, some at random."""
        count = min(self.downloads, fed.size - 1)
        g, best = fed.random("downloads"), s.worth[who].clone()
        # with chance `explore` a place in the order goes by the draw and not by the worth
        draw = torch.from_numpy(g.random((len(who), fed.size))).float()
        lucky = torch.from_numpy(g.random((len(who), fed.size)) < self.explore)
        top = best.abs().amax(1, keepdim=True) + 1
        order = torch.where(lucky, top + draw, best + 1e-6 * draw)
        order[torch.arange(len(who)), who] = -torch.inf
        return order.topk(count, dim=1).indices

    def personal(self, fed: Federation, s: State) -> Requests:
        return fed.request(use, each={"model": s.v})

    def results(self, s: State) -> dict[str, Tensor]:
        return {"mixing": s.mixing}


def take_and_train(
    client: Client, v: Tensor, others: Tensor, lr: Any, **work: Any
) -> dict[str, Tensor]:
    count = client.problem.validation.sizes[client.who].clamp(min=1)[:, None].to(v)

    def loss(model: Tensor) -> Tensor:
        said = client.answers(model, "validation")
        sums = (own_losses(each).sum(1, keepdim=True).to(v) for each in said)
        return sum(sums, torch.zeros_like(count)) / count

    own, steps = loss(v), others - v[:, None]
    losses = torch.cat([loss(others[:, j]) for j in range(others.shape[1])], 1)
    distance = steps.norm(dim=2)
    worth = torch.where(distance > 0, (own - losses) / distance.clamp(min=1e-12), 0)
    gain = worth.clamp(min=0)
    total = gain.sum(1, keepdim=True)
    taken = torch.where(total > 0, gain / total.clamp(min=1e-30), 0)
    y = sgd(client, v + (taken[:, :, None] * steps).sum(1), lr, work)
    return {"dv": y - v, "worth": worth, "taken": taken}
