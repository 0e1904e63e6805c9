"""PERM with sub-models as it is best used: nobody is to end below its own size trained alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.federation import Federation
from fedkin.core.variants import PLAIN, Variant
from fedkin.methods.base import CountOrZero, Method, State
from fedkin.methods.perm import Perm
from fedkin.methods.perm_own import PermOwn
from fedkin.methods.registry import register
from fedkin.methods.shared.masks import levels
from fedkin.methods.submodel import Submodel


@register("submodel-perm", sized=("perm",))
@dataclass
class SubmodelPerm(PermOwn, Submodel):  # type: ignore[override]
    """PERM (Deng et al., 2023) with models of different sizes, and lam chosen for each client.

    The warm-up trains w as "submodel" does. Who helps whom follows from the gradients g_j at the
    sub-model of w that all can carry (the smallest client's), over the clients that can carry
    model i, r_j >= r_i:
      alpha_i = argmin sum_j alpha(j)*|g_i - g_j|^2 + lam*sum_j alpha(j)^2/n_j.
    Model i, of its own size, starts at its part of w and visits these as in "perm". In the trial
    every client chooses between lam = 0 (alone), lam_rel = 1 and lam infinite (its part of w),
    each as it is or after `tune_steps` steps at home. A client that goes alone ends with what
    `local` would have given it: its part of the first model, trained on all its data with as many
    steps. Lost clients are treated as in "perm".
    """

    tune_steps: Annotated[CountOrZero, Doc("steps at home before a model is used")] = 30

    def init(self, fed: Federation) -> State:
        s = State(**{**vars(Submodel.init(self, fed)), **vars(Perm.init(self, fed))})
        of = {rate: fed.problem.variant(Variant(rate)).size for rate in s.rates.unique().tolist()}
        s.sizes = torch.tensor([of[rate] for rate in s.rates.tolist()])
        s.g = s.x.new_zeros(
            fed.size, *(self.sketched(fed.size, min(of.values())) or (min(of.values()),))
        )
        self.cut(fed, s)
        return self.first_models(fed, s)

    def cut(self, fed: Federation, s: State) -> None:
        """Everybody's part of w: means[kinds[i]] is what client i keeps of it."""
        rows, s.kinds = list[Tensor](), torch.zeros(fed.size, dtype=torch.int64)
        for rate, at in levels(s.rates, torch.arange(fed.size)):
            parts = self.kept(fed, s.x, rate, at)
            first = sum(len(part) for part in rows)
            s.kinds[at] = first + torch.arange(len(at)) % len(parts)
            rows.append(torch.nn.functional.pad(parts, (0, int(s.sizes.max()) - parts.shape[1])))
        s.means = torch.cat(rows)

    def average(self, fed: Federation, s: State, at: Tensor, variant: Variant = PLAIN) -> None:
        self.average_parts(fed, s, s.rates, at, form=variant)
        self.cut(fed, s)

    def forms(
        self, fed: Federation, s: State, at: Tensor, form: Variant = PLAIN
    ) -> Iterator[tuple[Variant, Tensor]]:
        for rate, _ in levels(s.rates, at):
            yield replace(form, rate=rate), (s.rates[at] == rate).nonzero()[:, 0]

    def compared(self, fed: Federation, s: State, form: Variant) -> tuple[Tensor, Variant]:
        smallest = float(s.rates.min())
        first = fed.problem.widths.index(fed.problem.widths.first(smallest))[0].to(s.x.device)
        x = s.early[first] * self.enlarged(fed, smallest)
        return x, replace(form, rate=smallest, scaler=self.scaler is True)

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        """Nobody knows a newcomer's size: w, as in "submodel"."""
        return Method.welcome(self, fed, s, new, hosts)

    def results(self, s: State) -> dict[str, Tensor]:
        return {**Perm.results(self, s), **Submodel.results(self, s)}
