"""PERM where clients bring modules of their own: an MLP here, a CNN there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.core.federation import Federation, Requests, Step
from fedkin.core.own_models import by_model, own_kinds, own_sizes, parameters
from fedkin.core.replies import Replies
from fedkin.core.tables import Rows
from fedkin.core.variants import PLAIN, Variant
from fedkin.errors import FedkinError
from fedkin.methods.base import SERVER, State
from fedkin.methods.fedavg import fine_tune, local_sgd
from fedkin.methods.perm import EARLY, Perm, stay
from fedkin.methods.registry import register


@register("perm-models", models=("perm",))
@dataclass
class PermModels(Perm):
    """PERM (Deng et al., 2023) where every client's model may have an architecture of its own.

    Gradients of different modules cannot be compared. So all clients train one more model w by
    FedAvg, for five rounds: the problem's own module, which must be small enough for everybody.
    Who helps whom follows from its gradients g_j, over the clients that can carry model i:
      alpha_i = argmin sum_j alpha(j)*|g_i - g_j|^2 + lam*sum_j alpha(j)^2/n_j,
      alpha_i(j) = 0 where model j has fewer parameters than model i.
    Model i, of its own architecture, visits these as in PERM. In the warm-up, and in the way "one
    model for all" of the trial (lam infinite), clients of the same architecture train one model
    by FedAvg. Where all have the problem's own module, this is PERM.

    Lost clients are treated as in PERM.
    """

    takes_models: ClassVar[bool] = True

    refuses: ClassVar[Mapping[str, str]] = {
        **Perm.refuses,
        **dict.fromkeys(SERVER, "its server averages models of several architectures"),
    }

    @property
    def not_private(self) -> str:  # type: ignore[override]
        return "clients are asked in groups that have the same architecture"

    def init(self, fed: Federation) -> State:
        s, problem = super().init(fed), fed.problem
        s.kinds, s.sizes = own_kinds(problem), own_sizes(problem)
        check_common(fed, s)
        names = [""] if problem.architectures is None else ["", *problem.architectures.modules]
        first = [problem.variant(Variant(module=name)).initial[0] for name in names]
        # models of several lengths are rows of one table, with zeros at the end
        s.means = torch.nn.utils.rnn.pad_sequence(first, batch_first=True)
        s.v = fed.room.table(len(self.tried) * fed.size, self.one_for_all(s))
        return s

    def one_for_all(self, s: State) -> Tensor:
        """FedAvg's model of the client's own architecture: [N, d]."""
        rows: Tensor = s.means[s.kinds.to(s.means.device)]
        return rows

    def average(self, fed: Federation, s: State, at: Tensor, variant: Variant = PLAIN) -> None:
        if s.rounds > self.warm_up and not s.trying:  # only what somebody uses
            at = at[torch.isin(s.kinds[at], s.kinds[s.lam.isinf()])]
        early = s.rounds <= min(EARLY, self.warm_up)
        common = at if early else at[s.kinds[at] == 0]
        if len(common):
            super().average(fed, s, common, variant)
        s.means = s.means.clone()
        s.means[0, : len(s.x)] = s.x
        for form, places in by_model(fed.problem, at, variant):
            if not form.module:
                continue
            some, size = at[places], fed.problem.variant(form).size
            x = s.means[s.kinds[some[0]], :size]
            mean = fed.mean(
                local_sgd, some, {"x": x}, weights=self.weights(fed), variant=form, lr=self.lr,
                **self.work,
            )  # fmt: skip
            if mean.answered:
                s.means[s.kinds[some[0]], :size] = x + mean["dx"]

    def distances(self, s: State) -> Tensor:
        cannot = s.sizes < s.sizes[:, None]  # the client of a column cannot carry a row's model
        return super().distances(s).masked_fill(cannot, inf)

    def barred(self, s: State, kin: Tensor) -> Tensor:
        cannot: Tensor = s.sizes[kin] < s.sizes[:, None]
        return cannot

    def send(
        self, fed: Federation, s: State, at: Tensor, of: Tensor, stack: int, form: Variant,
        **work: Any,
    ) -> None:  # fmt: skip
        places = stack * fed.size + of
        r = self.ask(fed, s, stay, at, of, s.v.at(places), form, **work)
        if r.arrived.any():
            s.v.write(places[r.arrived], r["v"][r.arrived])

    def ask(
        self, fed: Federation, s: State, step: Step, at: Tensor, of: Tensor, v: Rows,
        form: Variant, **hyper: Any,
    ) -> Replies:  # fmt: skip
        arrived, rows = torch.zeros(len(at), dtype=torch.bool), dict[str, Tensor]()
        # whatever the weights say: no host is given what it cannot carry
        able = s.sizes[at] >= s.sizes[of]
        for own, places in by_model(fed.problem, of, form):
            some = places[able[places]]
            each = {"v": v[some].read()[..., : fed.problem.variant(own).size]}
            r = fed.map(step, at[some], each=each, variant=own, **hyper)
            arrived[some] = r.arrived
            for name, value in r.items():
                width = v.shape[-1] if name == "v" else value.shape[1]
                rows.setdefault(name, value.new_zeros(len(at), width))
                rows[name][some, : value.shape[1]] = value
        return Replies(at, arrived, rows)

    def personal(self, fed: Federation, s: State) -> Requests:
        models, requests = self.own_models(s), []
        steps = (self.tune_steps * s.tuned).to(s.x)
        for form, at in by_model(fed.problem, torch.arange(fed.size)):
            own = models[at].read()[:, : fed.problem.variant(form).size]
            each = {"x": own, "local_steps": steps[at]}
            requests.append(
                fed.request(fine_tune, at, each=each, variant=form, lr=self.home_lr, **self.moves)
            )
        return tuple(requests)

    def global_model(self, s: State) -> Tensor | None:
        return None if bool(s.kinds.any()) else super().global_model(s)

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        if bool(s.kinds.any()):
            raise FedkinError(
                f"method '{self.name}' gives newcomers no model: it does not know which of the "
                "architectures they would bring"
            )
        return super().welcome(fed, s, new, hosts)

    def results(self, s: State) -> dict[str, Tensor]:
        """As in PERM; clients that use FedAvg's model learn from those of their architecture."""
        found, shared = super().results(s), s.lam.isinf()
        if found["mixing"].is_sparse:  # where such rows are empty
            return found
        alike = (s.kinds[:, None] == s.kinds).double()
        found["mixing"][shared] = (alike / alike.sum(1, keepdim=True))[shared]
        return found


def check_common(fed: Federation, s: State) -> None:
    """Refuse a common model that is too large for somebody."""
    size = parameters(fed.problem.spec.module)
    small = (s.sizes < size).nonzero()[:, 0].tolist()
    if small:
        name, own = fed.problem.data.names[small[0]], int(s.sizes[small[0]])
        raise FedkinError(
            f"client '{name}' has a model of {own:,} parameters and cannot carry the common one, "
            f"of {size:,}, by which clients are compared: choose a smaller common model"
        )
