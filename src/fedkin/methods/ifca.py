"""IFCA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Request
from fedkin.methods.base import NO_ONE_MODEL, Count, NotNegative, State, sgd
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.registry import register


@register("ifca")
@dataclass
class IFCA(FedAvg):
    """IFCA (Ghosh et al., 2020): K models; every client trains the one that suits it best.

    Each sampled client takes, of models 1..K, the one with the lowest loss on its training
    data, k_i, and K' steps y <- y - lr*g_i(y) from it; model k <- mean of y over the clients
    with k_i = k, and stays as it is when there are none. K is `clusters`. Personal model:
    the best of the K on the client's training data. Models that start alike would stay
    alike: each starts at the initial model plus noise of deviation spread/sqrt(fan-in).
    Lost clients are left out and keep their place in the record of clusters, where -1
    stands for a client that has not answered yet.
    """

    not_private: ClassVar[str] = "clients tell the server which group is theirs"

    refuses: ClassVar[Mapping[str, str]] = NO_ONE_MODEL

    clusters: Annotated[Count, Doc("number of models")] = 3
    spread: Annotated[NotNegative, Doc("how far apart the models start")] = 0.5

    def init(self, fed: Federation) -> State:
        x = fed.initial_model()
        noise = fed.random("models").normal(size=(self.clusters, len(x)))
        models = x + self.spread * torch.from_numpy(noise).to(x) / fan_in(fed).sqrt().to(x)
        return State(models=models, cluster=torch.full((fed.size,), -1))

    def round(self, fed: Federation, s: State) -> None:
        who = fed.sample()
        r = fed.map(train_best, at=who, shared={"models": s.models}, lr=self.lr, **self.work)
        if r.arrived.any():
            weights = self.weights(fed)
            counts = torch.ones(len(who)) if weights is None else weights[who]
            choice, here = r["choice"][:, 0].cpu(), r.arrived
            s.cluster = s.cluster.index_copy(0, who[here], choice[here])
            trained = s.models[choice[here]] + r["dx"][here]
            s.models = group_means(trained, choice[here], counts[here], s.models)
        fed.record(cluster=s.cluster)

    def personal(self, fed: Federation, s: State) -> Request:
        return fed.request(best_of, shared={"models": s.models})

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        """The one of the models that suits the newcomer's training data best."""
        return new.look(new.request(best_of, shared={"models": s.models}))["model"]

    def results(self, s: State) -> dict[str, Tensor]:
        return {"cluster": s.cluster}

    def global_model(self, s: State) -> None:
        """There is none: one model per cluster."""


def fan_in(fed: Federation) -> Tensor:
    """For every parameter, how many inputs its unit has (1 for a bias)."""
    slots = fed.problem.layout.slots
    inputs = [slot.size / slot.shape[0] if slot.shape else 1 for slot in slots]
    return torch.cat([torch.full((s.size,), n) for s, n in zip(slots, inputs, strict=True)])


def group_means(rows: Tensor, group: Tensor, weights: Tensor, old: Tensor) -> Tensor:
    """The weighted mean [K, d] of the rows of every group; an empty group keeps its old row."""
    shares = F.one_hot(group, len(old)).to(rows) * weights.to(rows)[:, None]
    total = shares.sum(0)[:, None]
    return torch.where(total > 0, shares.T @ rows / total, old)


def choose(client: Client, models: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the models [., K, d] has the lowest loss on the training data, and the model."""
    losses = [client.full_loss(models[:, k]) for k in range(models.shape[1])]
    choice = torch.cat(losses, 1).argmin(1, keepdim=True)
    return choice, torch.take_along_dim(models, choice[:, :, None], 1)[:, 0]


def train_best(client: Client, models: Tensor, lr: Any, **work: Any) -> dict[str, Tensor]:
    choice, x = choose(client, models)
    return {"choice": choice, "dx": sgd(client, x, lr, work) - x}


def best_of(client: Client, models: Tensor) -> dict[str, Tensor]:
    return {"model": choose(client, models)[1]}
