"""Local only with sub-models: every client alone, with a model of its own size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.federation import Federation, Requests
from fedkin.core.variants import Variant
from fedkin.methods.base import State
from fedkin.methods.local import Local, own_model, train_alone
from fedkin.methods.registry import register
from fedkin.methods.shared.masks import RATES, Capacity, Rates, as_numbers, first_rates, levels


@register("submodel-alone", sized=("local",))
@dataclass
class SubmodelAlone(Local):
    """Local only, client i with ceil(r_i*C) of the C channels of every hidden layer.

    v_i <- v_i - lr*g_i(v_i), from the first channels of the initial model. Rates are assigned, or
    read from the client table, as in "submodel" (the first ones where it redraws them), so that
    collaboration is compared with models of the same sizes. Nothing is sent. A client that is
    lost in a round does not train in it.
    """

    takes_models: ClassVar[bool] = False

    rates: Annotated[Rates, Doc("shares of hidden widths, such as 1,1/2,1/4")] = RATES
    capacity: Capacity = "uniform"

    def __post_init__(self) -> None:
        self.rates = as_numbers(self.rates)

    def init(self, fed: Federation) -> State:
        return State(rates=first_rates(fed, self.rates, self.capacity))

    def round(self, fed: Federation, s: State) -> None:
        for rate, at in levels(s.rates, fed.sample()):
            fed.map(train_alone, at, variant=Variant(rate), lr=self.lr, **self.work)

    def personal(self, fed: Federation, s: State) -> Requests:
        everybody = levels(s.rates, torch.arange(fed.size))
        return tuple(fed.request(own_model, at, variant=Variant(r)) for r, at in everybody)

    def results(self, s: State) -> dict[str, Tensor]:
        return {"rates": s.rates[:, None]}
