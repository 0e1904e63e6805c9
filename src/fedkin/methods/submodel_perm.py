"""PERM with sub-models: who to learn with, when everybody's model has its own size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.federation import Federation, Requests, Step
from fedkin.core.replies import Replies
from fedkin.core.variants import Variant
from fedkin.methods.base import NotNegative, State, use
from fedkin.methods.perm import PermTwoStage, gradient_at
from fedkin.methods.registry import register
from fedkin.methods.shared import mixing
from fedkin.methods.shared.masks import levels
from fedkin.methods.submodel import Submodel, one_or_each


@register("submodel-perm", sized=("perm", "perm-two-stage"))
@dataclass
class SubmodelPerm(PermTwoStage, Submodel):
    """PERM in two stages (Deng et al., 2023, different models per client).

    Stage one trains w as "submodel" does. Then client j, whose mask m_j has the channels that
    it keeps, sends the gradient of f_j at its part of w, and over the simplex
      alpha_i = argmin sum_j alpha(j)*(c_j + |grad f_i(m_i*w) - grad f_j(m_j*w)|^2)
                       + lam*sum_j alpha(j)^2/n_j,
    with c_j proportional to sqrt(d_j/n_j), d_j the size of client j's model; `capacity_rel` is
    the mean of c in units of the median distance. Model i, of its own size, starts at m_i*w and
    visits clients as in two-stage PERM. Lost clients are treated as there.
    """

    capacity_rel: Annotated[
        NotNegative, Doc("cost of learning from clients with large models and few samples")
    ] = 0.1

    def init(self, fed: Federation) -> State:
        return State(**{**vars(Submodel.init(self, fed)), **vars(PermTwoStage.init(self, fed))})

    def gradients(self, fed: Federation, s: State, due: Tensor) -> Replies:
        """Everybody's gradient at its part of w, in the places of w; zero elsewhere."""
        if not len(due):
            return super().gradients(fed, s, due)
        rows, arrived = s.x.new_zeros(len(due), len(s.x)), torch.zeros(len(due), dtype=torch.bool)
        for rate, at in levels(s.rates, due):
            index, place = self.part(fed, rate, 0, at), torch.isin(due, at)
            r = fed.map(
                gradient_at, at, variant=Variant(rate), batches=self.gradient_batches,
                **one_or_each("x", self.kept(fed, s.x, rate, at)),
            )  # fmt: skip
            index = index.expand(len(at), -1)
            rows[place] = rows[place].scatter(1, index, r["g"].expand(index.shape))
            arrived[place] = r.arrived
        return Replies(
            due, arrived, {"g": rows if self.sketch is None else mixing.sketch(rows, self.sketch)}
        )

    def costs(self, fed: Federation, s: State, z: Tensor) -> Tensor:
        cost = ((self.factors(fed, s) > 0).sum(1).cpu() / fed.samples).sqrt()
        unit = mixing.scale_free(z, torch.ones(1), self.capacity_rel)
        return unit * cost / cost.mean()

    def shuffle(self, fed: Federation, s: State) -> int:
        if s.epoch == 1 and s.hop == 0:
            s.v = s.v * self.factors(fed, s)
        return super().shuffle(fed, s)

    def at_hosts(
        self, fed: Federation, s: State, step: Step, going: Tensor, host: Tensor, weight: Tensor,
        lost: Tensor, **hyper: Any,
    ) -> Tensor:  # fmt: skip
        rows, models = lost.clone(), going.nonzero()[:, 0]
        for rate, some in levels(s.rates, models):
            index = self.part(fed, rate, 0, some).expand(len(some), -1)
            place = torch.isin(models, some)
            each = {"v": s.v[some].gather(1, index), "weight": weight[some].to(s.v)}
            r = fed.map(step, at=host[some], each=each, variant=Variant(rate), **hyper)
            old = lost[place]
            rows[place] = old.scatter(1, index, r.fill("v", old.gather(1, index)))
        return rows

    def personal(self, fed: Federation, s: State) -> Requests:
        if s.epoch == 0:
            return Submodel.personal(self, fed, s)
        models, requests = (s.final if s.polished == s.rounds else s.v), []
        for rate, at in levels(s.rates, torch.arange(fed.size)):
            index = self.part(fed, rate, 0, at).expand(len(at), -1)
            own = {"model": models[at].gather(1, index)}
            requests.append(fed.request(use, at, each=own, variant=Variant(rate)))
        return tuple(requests)

    def results(self, s: State) -> dict[str, Tensor]:
        return {**PermTwoStage.results(self, s), **Submodel.results(self, s)}

    def factors(self, fed: Federation, s: State) -> Tensor:
        """m_i: by what each client's model enlarges entries of w, [N, d]; 0 where it has none."""
        found: Tensor = s.x.new_zeros(fed.size, len(s.x))
        ones = torch.ones_like(s.x)
        for rate, at in levels(s.rates, torch.arange(fed.size)):
            index = self.part(fed, rate, 0, at).expand(len(at), -1)
            factors = self.kept(fed, ones, rate, at).expand(index.shape)
            found[at] = found[at].scatter(1, index, factors)
        return found
