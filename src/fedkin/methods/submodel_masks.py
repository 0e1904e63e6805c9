"""Sub-model training with coordinate masks: the algorithms that the theory is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests
from fedkin.methods.base import Count, Positive, State, use
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.registry import register
from fedkin.methods.shared.masks import (
    RATES,
    Aggregation,
    Capacity,
    Rates,
    as_numbers,
    coordinate_window,
    first_rates,
    random_coordinates,
    rates_now,
    shuffled,
)
from fedkin.methods.shared.optimisers import Descent
from fedkin.methods.shared.outputs import Output, note_output, output_of

Kind = Literal["random", "rolling"]


@register("submodel-masks")
@dataclass
class SubmodelMasks(FedAvg):
    """Distributed sub-model training with masks m_i in {0,1}^d over single coordinates.

    From y = m_i*x: y <- y - lr*m_i*g_i(m_i*y), K times; x <- Proj(mean_S(y + (1 - m_i)*x)),
    or with `aggregation` "holders" the mean over those who hold a coordinate. p_i is a client's
    rate, as `capacity` says. Masks are "random": each coordinate held with probability p_i, anew
    for every client and round; or "rolling": windows of a share p_i of the coordinates, visited
    in a fresh random order every epoch of `windows` rounds, the same for all clients. `radius`
    projects x on an L2 ball. Whole vectors are sent; "submodel" is the form that saves bytes.
    Lost clients are left out of the mean; if nobody answers, x stays.
    """

    refuses: ClassVar[Mapping[str, str]] = {
        "optimiser_state": "clients train other coordinates from round to round"
    }

    rates: Annotated[Rates, Doc("shares of coordinates held, such as 1,1/2,1/4")] = RATES
    capacity: Capacity = "uniform"
    kind: Annotated[Kind, Doc("which coordinates are held")] = "random"
    windows: Annotated[Count, Doc("windows in an epoch of rolling")] = 16
    aggregation: Annotated[Aggregation, Doc("who counts for a coordinate: holders or all")] = "fill"
    radius: Annotated[Positive | None, Doc("the model stays in a ball of this radius")] = None
    output: Output = "last"

    def __post_init__(self) -> None:
        self.rates = as_numbers(self.rates)

    def init(self, fed: Federation) -> State:
        rates = first_rates(fed, self.rates, self.capacity)
        return State(x=fed.initial_model(), rates=rates)

    def round(self, fed: Federation, s: State) -> None:
        who = fed.sample()
        share = rates_now(fed, s.rates, self.rates, self.capacity)[who]
        mean = fed.mean(
            masked_sgd, at=who, shared={"x": s.x}, each={"share": share.to(s.x)},
            weights=self.weights(fed), kind=self.kind, windows=self.windows,
            start=shuffled(fed.seed, self.windows, fed.round - 1),
            send_mask=self.aggregation == "holders", lr=self.lr, **self.work,
        )  # fmt: skip
        fed.record(rate=float(self.had(share).mean()))
        dx = mean["dx"]
        dx = dx if self.aggregation == "fill" else divided(dx, mean["held"])
        self.advance(s, dx, mean.answered)
        if self.radius is not None:
            s.x = s.x * (self.radius / s.x.norm()).clamp(max=1)
        note_output(fed, s, self.output)

    def had(self, share: Tensor) -> Tensor:
        """The share of coordinates really held: a window has whole cells."""
        cells = (share * self.windows - 1e-6).ceil()
        return share if self.kind == "random" else cells / self.windows

    def personal(self, fed: Federation, s: State) -> Requests:
        return fed.request(use, shared={"model": output_of(s)})

    def global_model(self, s: State) -> Tensor | None:
        return output_of(s)


def masked_sgd(
    client: Client, x: Tensor, share: Tensor, kind: Kind, windows: int, start: int,
    send_mask: bool, lr: Any, **work: Any,
) -> dict[str, Tensor]:  # fmt: skip
    if kind == "random":
        m = random_coordinates(client, x.shape[1], share)
    else:
        m = coordinate_window(x, share, start, windows)
    local = Descent(client, lr, work)

    def step(y: Tensor) -> Tensor:
        return local.move(y, m * client.grad(y)) if local.rule else m * local.step(y)

    y = client.repeat(local.steps, step, m * x)
    return {"dx": y - m * x} | ({"held": m} if send_mask else {})


def divided(total: Tensor, count: Tensor) -> Tensor:
    """total/count, and zero where nothing was counted."""
    return torch.where(count > 0, total / count, 0)
