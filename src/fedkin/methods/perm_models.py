"""PERM where clients bring modules of their own: an MLP here, a CNN there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedkin.core.federation import Federation
from fedkin.core.own_models import by_model, own_kinds, own_sizes, parameters
from fedkin.core.variants import PLAIN, Variant
from fedkin.errors import FedkinError
from fedkin.methods.base import SERVER, State
from fedkin.methods.fedavg import local_sgd
from fedkin.methods.perm import EARLY
from fedkin.methods.perm_own import PermOwn
from fedkin.methods.registry import register


@register("perm-models", models=("perm",))
@dataclass
class PermModels(PermOwn):
    """PERM (Deng et al., 2023) where every client's model may have an architecture of its own.

    Gradients of different modules cannot be compared. So all clients train one more model w by
    FedAvg, for five rounds: the problem's own module, which must be small enough for everybody.
    Who helps whom follows from its gradients g_j, over the clients that can carry model i:
      alpha_i = argmin sum_j alpha(j)*|g_i - g_j|^2 + lam*sum_j alpha(j)^2/n_j,
      alpha_i(j) = 0 where model j has fewer parameters than model i.
    Model i, of its own architecture, visits these as in PERM. In the warm-up, and in the way "one
    model for all" of the trial (lam infinite), clients of the same architecture train one model
    by FedAvg. A client that goes alone ends with what `local` would have given it: its own first
    model, trained on all its data with as many steps; clients choose in the warm-up too. Apart
    from that, where all have the problem's own module, this is PERM.

    Lost clients are treated as in PERM.
    """

    takes_models: ClassVar[bool] = True

    refuses: ClassVar[Mapping[str, str]] = {
        **PermOwn.refuses,
        **dict.fromkeys(SERVER, "its server averages models of several architectures"),
    }

    def init(self, fed: Federation) -> State:
        s, problem = super().init(fed), fed.problem
        s.kinds, s.sizes = own_kinds(problem), own_sizes(problem)
        check_common(fed, s)
        names = [""] if problem.architectures is None else ["", *problem.architectures.modules]
        first = [problem.variant(Variant(module=name)).initial[0] for name in names]
        # models of several lengths are rows of one table, with zeros at the end
        s.means = torch.nn.utils.rnn.pad_sequence(first, batch_first=True)
        return self.first_models(fed, s)

    def forms(
        self, fed: Federation, s: State, at: Tensor, form: Variant = PLAIN
    ) -> Iterator[tuple[Variant, Tensor]]:
        return by_model(fed.problem, at, form)

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
