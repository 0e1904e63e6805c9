"""Ditto with sub-models: a model of one's own, of one's own size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests
from fedkin.core.variants import Variant
from fedkin.methods.base import NotNegative, State, own
from fedkin.methods.ditto import global_and_own_steps
from fedkin.methods.registry import register
from fedkin.methods.shared.masks import levels
from fedkin.methods.shared.optimisers import Descent
from fedkin.methods.submodel import Change, Submodel, one_or_each


@register("submodel-ditto", sized=("ditto",))
@dataclass
class SubmodelDitto(Submodel):
    """Ditto in which client i trains, and keeps, models of its own rate r_i.

    x is trained as in "submodel". Beside it, with x_i the part of x in the channels that the
    client keeps (those of its first round), v_i <- v_i - lr*(g_i(v_i) + lam*(v_i - x_i)), K
    times; v_i stays at the client as its personal model. Where a client trains the channels
    that it keeps, both happen on the same minibatches and x_i is sent once, as in Ditto;
    otherwise x_i is sent beside the part to train. Lost clients keep their v_i.
    """

    refuses: ClassVar[Mapping[str, str]] = {
        **Submodel.refuses,
        **dict.fromkeys(("tune_steps", "tune_lr"), "a client's own model is trained beside x"),
    }

    lam: Annotated[NotNegative, Doc("pull of a client's own model towards x")] = 0.1

    def train(  # type: ignore[override]
        self, fed: Federation, s: State, rate: float, at: Tensor
    ) -> Change:
        if self.trains_what_it_keeps(fed, rate, at):
            return super().train(fed, s, rate, at, global_and_own_steps, lam=self.lam)
        change = super().train(fed, s, rate, at)
        for kept, who in levels(s.rates, at):
            x = one_or_each("x", self.kept(fed, s.x, kept, who))
            hyper = {"lr": self.lr, "lam": self.lam, **self.work}
            fed.map(own_steps, who, variant=Variant(kept), **x, **hyper)
        return change

    def trains_what_it_keeps(self, fed: Federation, rate: float, at: Tensor) -> bool:
        """Whether the model to train is, this round, a model just like the one to keep."""
        altered = self.scaler is True or self.own_classes or self.capacity == "redrawn"
        now, always = (self.part(fed, rate, turn, at) for turn in (fed.round - 1, 0))
        return not altered and torch.equal(now, always)

    def personal(self, fed: Federation, s: State) -> Requests:
        return self.at_home(fed, s, own, "x", kept="v")


def own_steps(client: Client, x: Tensor, lr: Any, lam: Any, **work: Any) -> dict[str, Tensor]:
    local = Descent(client, lr, work)
    v = client.copy(client.recall("v", x))
    client.keep(v=client.repeat(local.steps, lambda v: local.step(v, None, x, lam), v))
    return {}
