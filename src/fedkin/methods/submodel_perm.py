"""PERM with sub-models: who to learn with, when everybody's model has its own size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.federation import Federation, Requests, Step
from fedkin.core.replies import Replies
from fedkin.core.variants import Variant
from fedkin.methods.base import CountOrZero, NotNegative, Positive, State
from fedkin.methods.fedavg import fine_tune
from fedkin.methods.perm_printed import PermPrinted, PermTwoStage, gradient_at
from fedkin.methods.registry import register
from fedkin.methods.shared import mixing
from fedkin.methods.shared.masks import levels
from fedkin.methods.submodel import Submodel, one_or_each


@register("submodel-perm-two-stage", sized=("perm-two-stage",))
@dataclass
class SubmodelPermTwoStage(PermTwoStage, Submodel):
    """PERM in two stages (Deng et al., 2023, different models per client).

    Stage one trains w as "submodel" does. Then every client j sends g_j, the gradient of f_j at
    the sub-model of w that all can carry (the smallest client's), and over the simplex
      alpha_i = argmin sum_j alpha(j)*(c_j + |g_i - g_j|^2) + lam*sum_j alpha(j)^2/n_j,
    with c_j proportional to sqrt(d_j/n_j), d_j the size of client j's model; `capacity_rel` is
    the mean of c in units of the median distance. Model i, of its own size, starts at its part
    of w and visits clients as in two-stage PERM, but only those that can carry it: alpha_i(j) = 0
    where r_j < r_i. It is used after `tune_steps` steps at home.

    As printed, with `compare` "own": g_j = grad f_j(m_j*w), m_j the channels that client j keeps.
    Such gradients differ mainly because masks do, and weights go to clients of the same size
    rather than of the same kind. Lost clients are treated as in two-stage PERM.
    """

    capacity_rel: Annotated[
        NotNegative, Doc("cost of learning from clients with large models and few samples")
    ] = 0.1
    compare: Annotated[
        Literal["common", "own"],
        Doc("gradients of a sub-model that all can carry, or each its own"),
    ] = "common"

    def init(self, fed: Federation) -> State:
        s = State(**{**vars(Submodel.init(self, fed)), **vars(PermTwoStage.init(self, fed))})
        if self.compare == "common" and self.sketch is None:
            s.g = s.x.new_zeros(fed.size, fed.problem.variant(Variant(float(s.rates.min()))).size)
        return s

    def gradients(self, fed: Federation, s: State, due: Tensor) -> Replies:
        if len(due) and self.compare == "own":
            return self.sketched(self.own_gradients(fed, s, due))
        smallest = float(s.rates.min())
        first = fed.problem.widths.index(fed.problem.widths.first(smallest))[0].to(s.x.device)
        x = s.x[first] * self.enlarged(fed, smallest)
        size = () if self.sketch is None else (self.sketch,)
        return fed.map(
            gradient_at, due, {"x": x}, variant=Variant(smallest, self.scaler is True),
            batches=self.gradient_batches, sketch=size,
        )  # fmt: skip

    def own_gradients(self, fed: Federation, s: State, due: Tensor) -> Replies:
        """Everybody's gradient by its part of w, in the places of w; zero elsewhere.

        As in training: divided by what the part is multiplied by before it is given.
        """
        rows, arrived = s.x.new_zeros(len(due), len(s.x)), torch.zeros(len(due), dtype=torch.bool)
        for rate, at in levels(s.rates, due):
            index, place = self.part(fed, rate, 0, at), torch.isin(due, at)
            more, variant = self.enlarged(fed, rate), Variant(rate, self.scaler is True)
            r = fed.map(
                gradient_at, at, variant=variant, batches=self.gradient_batches,
                **one_or_each("x", s.x[index] * more),
            )  # fmt: skip
            index = index.expand(len(at), -1)
            rows[place] = rows[place].scatter(1, index, (r["g"] / more).expand(index.shape))
            arrived[place] = r.arrived
        return Replies(due, arrived, {"g": rows})

    def sketched(self, r: Replies) -> Replies:
        if self.sketch is not None:
            r["g"] = mixing.sketch(r["g"], self.sketch)
        return r

    def costs(self, fed: Federation, s: State, z: Tensor) -> Tensor:
        cost = ((self.factors(fed, s) > 0).sum(1).cpu() / fed.samples).sqrt()
        unit = mixing.scale_free(z, torch.ones(1), self.capacity_rel)
        cannot = s.rates < s.rates[:, None]  # the client of a column cannot carry a row's model
        return (unit * cost / cost.mean()).expand_as(z).masked_fill(cannot, torch.inf)

    def shuffle(self, fed: Federation, s: State) -> int:
        if s.epoch == 1 and s.hop == 0:
            s.v = s.v * self.factors(fed, s)
        return super().shuffle(fed, s)

    def at_hosts(
        self, fed: Federation, s: State, step: Step, going: Tensor, host: Tensor, weight: Tensor,
        lost: Tensor, **hyper: Any,
    ) -> Tensor:  # fmt: skip
        rows, models = lost.clone(), going.nonzero()[:, 0]
        # whatever the weights say (they are even before any are learnt): no host is overloaded
        able = models[s.rates[host[models]] >= s.rates[models]]
        for rate, some in levels(s.rates, able):
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
            own = {"x": models[at].gather(1, index)}
            requests.append(
                fed.request(fine_tune, at, each=own, variant=Variant(rate), **self.tuning)
            )
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


@register("submodel-perm-printed", sized=("perm-printed",))
@dataclass
class SubmodelPermPrinted(SubmodelPermTwoStage, PermPrinted):
    """PERM in a single loop with models of different sizes, as printed (Deng et al., 2023).

    Weights and models as in "submodel-perm-two-stage", learnt together as in "perm-printed": once
    per epoch, or in every round (`refresh`), clients send g_j anew, and beside it the gradient of
    f_j at their own part of w; then w <- w - gamma*mean of these, entry by entry over the clients
    that hold the entry. A client's last g_j stands for it while it is away.
    """

    warm_up: Annotated[CountOrZero, Doc("rounds of FedAvg before there are personal models")] = 5
    schedule: Annotated[Literal["packed", "cyclic"], Doc("who visits whom when")] = "packed"
    step_limit: Annotated[
        Positive | Literal["none"],
        Doc("shorten a model's steps alike so that none exceeds this many times lr"),
    ] = 4.0

    def gradients(self, fed: Federation, s: State, due: Tensor) -> Replies:
        if not len(due):
            return super().gradients(fed, s, due)
        own = self.own_gradients(fed, s, due)
        held = (self.factors(fed, s)[due[own.arrived]] > 0).sum(0)
        mean = own["g"][own.arrived].sum(0) / held.clamp(min=1)
        r = self.sketched(own) if self.compare == "own" else super().gradients(fed, s, due)
        s.x = s.x - (self.lr if self.gamma is None else self.gamma) * mean
        return r
