"""SCAFFOLD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.methods.base import SGD_ONLY, LocalWork, OneModel, Positive, State
from fedkin.methods.registry import register


@register("scaffold")
@dataclass
class Scaffold(OneModel, LocalWork):
    """SCAFFOLD (Karimireddy et al., 2020): local steps, corrected for client drift.

    From y = x: y <- y - lr*(g_i(y) - c_i + c), K times; c_i+ = c_i - c + (x - y)/(K*lr);
    x <- x + server_lr*mean_S(y - x); c <- c + 1/N*sum_S(c_i+ - c_i). The client keeps c_i.
    Lost clients are left out of the mean and the sum.
    """

    refuses: ClassVar[Mapping[str, str]] = {
        **SGD_ONLY,
        "server_optimiser": "its control variates suppose that the server adds the mean change",
    }

    server_lr: Annotated[Positive, Doc("size of the server's step")] = 1.0

    def init(self, fed: Federation) -> State:
        x = fed.initial_model()
        return State(x=x, c=torch.zeros_like(x))

    def round(self, fed: Federation, s: State) -> None:
        mean = fed.mean(
            corrected_sgd, at=fed.sample(), shared={"x": s.x, "c": s.c}, lr=self.lr, **self.work
        )
        s.x = s.x + self.server_lr * mean["dx"]
        s.c = s.c + mean.answered / fed.size * mean["dc"]


def corrected_sgd(client: Client, x: Tensor, c: Tensor, lr: Any, **work: Any) -> dict[str, Tensor]:
    ci, steps = client.recall("c", torch.zeros_like(x)), client.steps(**work)
    shift = c - ci
    y = client.repeat(
        steps, lambda y: client.descend_(y, lr, minus=shift, times=lr), client.copy(x)
    )
    dx = y.sub_(x)
    dc = (dx / (-steps * lr)).sub_(c)
    client.keep(c=ci + dc)
    return {"dx": dx, "dc": dc}
