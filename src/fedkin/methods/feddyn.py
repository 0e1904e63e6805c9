"""FedDyn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.methods.base import SERVER, LocalTraining, OneModel, Positive, State
from fedkin.methods.registry import register
from fedkin.methods.shared.optimisers import Descent


@register("feddyn")
@dataclass
class FedDyn(OneModel, LocalTraining):
    """FedDyn (Acar et al., 2021): local losses bent so that their optima are the global one.

    From y = x, K steps on f_i(y) - <h_i, y> + pull/2*|y - x|^2; the client keeps
    h_i <- h_i - pull*(y - x), at first 0. The server: h <- h - pull/N*sum_S(y - x),
    x <- mean_S y - h/pull. Where it converges all y are equal, at the optimum of mean_i f_i.
    Lost clients are left out of the mean and the sum; if nobody answers, x stays.
    """

    refuses: ClassVar[Mapping[str, str]] = dict.fromkeys(
        SERVER, "its server's step follows from pull"
    )

    pull: Annotated[Positive, Doc("alpha, how strongly clients are drawn to x")] = 0.1

    def init(self, fed: Federation) -> State:
        x = fed.initial_model()
        return State(x=x, h=torch.zeros_like(x))

    def round(self, fed: Federation, s: State) -> None:
        mean = fed.mean(
            dynamic_steps, at=fed.sample(), shared={"x": s.x}, lr=self.lr, pull=self.pull,
            **self.work,
        )  # fmt: skip
        if mean.answered:
            s.h = s.h - self.pull * mean.answered / fed.size * mean["dx"]
            s.x = s.x + mean["dx"] - s.h / self.pull


def dynamic_steps(client: Client, x: Tensor, lr: Any, pull: Any, **work: Any) -> dict[str, Tensor]:
    h, descent = client.recall("h", torch.zeros_like(x)), Descent(client, lr, work)

    def step(y: Tensor) -> Tensor:
        return descent.move(y, client.grad(y) - h + pull * (y - x))

    y = client.repeat(descent.steps, step, client.copy(x))
    client.keep(h=h - pull * (y - x))
    descent.keep()
    return {"dx": y - x}
