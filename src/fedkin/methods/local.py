"""Local only: every client alone. What collaboration has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests
from fedkin.core.own_models import by_model
from fedkin.methods.base import LocalTraining, State, sgd
from fedkin.methods.registry import register


@register("local")
@dataclass
class Local(LocalTraining):
    """Local only: v_i <- v_i - lr*g_i(v_i), as many steps as the other methods take.

    Nothing is sent. Clients may have models of their own architecture. A client that is lost in a
    round does not train in it.
    """

    takes_models: ClassVar[bool] = True
    releases: ClassVar[tuple[int, int]] = (0, 0)

    def init(self, fed: Federation) -> State:
        return State()

    def round(self, fed: Federation, s: State) -> None:
        present = fed.sample()
        for form, places in by_model(fed.problem, present):
            fed.map(train_alone, present[places], variant=form, lr=self.lr, **self.work)

    def personal(self, fed: Federation, s: State) -> Requests:
        everybody = by_model(fed.problem, torch.arange(fed.size))
        return tuple(fed.request(own_model, at, variant=form) for form, at in everybody)

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        """Nothing was learnt for others: newcomers start as everybody did."""
        return new.initial_model().expand(new.size, -1)


def train_alone(client: Client, lr: Any, **work: Any) -> dict[str, Tensor]:
    client.keep(v=sgd(client, client.recall("v", client.initial), lr, work))
    return {}


def own_model(client: Client) -> dict[str, Tensor]:
    return {"model": client.recall("v", client.initial)}
