"""PERM as it is best used: who to learn with, and how widely, found out by trying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests
from fedkin.core.tables import Rows, Table
from fedkin.core.variants import HELD_OUT, PLAIN, Variant
from fedkin.methods.base import State
from fedkin.methods.fedavg import fine_tune
from fedkin.methods.perm_trial import TriesWays
from fedkin.methods.registry import register
from fedkin.methods.shared import mixing, shuffling
from fedkin.methods.shared.optimisers import Descent

# gradients are compared at w after so many rounds: later they are small, and mostly noise
EARLY = 5


@register("perm")
@dataclass
class Perm(TriesWays):
    """PERM (Deng et al., 2023), with lam chosen for each client, extremes included.

    Client i minimises Phi_i(v) = sum_j alpha_i(j)*f_j(v). After `warm_up` rounds of FedAvg, for
    w, clients j send g_j, the gradient of f_j at w as it was after five of them, and
      alpha_i = argmin sum_j alpha(j)*|g_i - g_j|^2 + lam*sum_j alpha(j)^2/n_j  over the simplex.
    In an epoch of T rounds each model i, from w, makes S visits, alpha_i(c)*S of them on average
    at client c and no two models at one client, of K*T/S steps v_i <- v_i - lr*g_c(v_i). It is
    used as it is or after `tune_steps` steps at home.

    lam: until the end of the `trial` that follows the warm-up all train on four fifths of their
    data, in three ways: alone (lam = 0, from the first round), lam_rel = 1, and lam infinite (w
    itself: FedAvg goes on). They are judged on the rest, at the sharpness that suits each way best.
    Everybody goes on, on all data, in the way with the smallest mean loss, but for clients that are
    95 % sure of another, from everybody's losses and their own (see shared/choosing.py). While
    losses fall so that another way will have the smallest mean forty rounds later, the trial lasts
    longer, up to three times `trial`.

    A client that is lost or does not take part: the model due there comes home unchanged. It
    sends its gradient when it can; before that it learns alone and nobody from it. If it was not
    heard in the trial it chooses as most do.

    Of over 2,000 clients each learns from its `nearest` (32) only, compared by sketches of
    gradients that are long, and visits take the first round that is free.
    """

    # a gradient and a visiting model's change, where no trial is made
    releases: ClassVar[tuple[int, int]] = (1, 2)

    refuses: ClassVar[Mapping[str, str]] = {"optimiser_state": "clients train each other's models"}

    def init(self, fed: Federation) -> State:
        x, n, ways = fed.initial_model(), fed.size, 2 * (len(self.tried) + 1)
        given = inf if self.lam_rel is None else self.lam_rel
        return State(
            **vars(self.first_kin(fed, x)), x=x, early=x, v=fed.room.table(len(self.tried) * n, x),
            tuned=torch.full((n,), given < inf), lam=torch.full((n,), given, dtype=torch.float64),
            sure=torch.full((n,), 0.5).double(), trying=int(self.lam_rel is None),
            plan=torch.zeros(0, 4, dtype=torch.int32), length=1, hop=1, share=1.0,
            epoch=0, rounds=0, count=torch.zeros(n).double(), total=torch.zeros(n, ways).double(),
            product=torch.zeros(n, ways, ways).double(),
            course=torch.zeros(0, ways // 2).double(),
        )  # fmt: skip

    def round(self, fed: Federation, s: State) -> None:
        s.rounds += 1
        form, use_w = HELD_OUT if s.trying else PLAIN, s.lam.isinf()
        early = s.rounds <= self.warm_up
        if early or bool(use_w.any()) or s.trying:
            everybody = early or s.trying or bool(use_w.all())
            self.average(fed, s, fed.sample() if everybody else self.trainers(fed, use_w), form)
        if s.rounds <= min(EARLY, self.warm_up):
            s.early = s.x
        if s.trying:  # those alone begin at once, as they would without the others
            self.send(fed, s, fed.sample(), fed.sample(), 0, form, 1.0)
        if early:
            return
        if s.epoch == 0:
            s.v.begin(self.one_for_all(s))
        if s.hop == s.length:
            self.begin_epoch(fed, s, form)
        self.visit_hosts(fed, s, form)
        if s.trying:
            self.compare_ways(fed, s)
        fed.record(own_weight=self.own_weight(s))

    def trainers(self, fed: Federation, use_w: Tensor) -> Tensor:
        """Who trains w where some use it and others do not: those who do, and half of the rest."""
        present = fed.sample()
        others = present[~use_w[present]]
        order = torch.from_numpy(fed.random("half").permutation(len(others)))
        some = others[order[: -(-len(others) // 2)]]
        return torch.cat([present[use_w[present]], some]).sort().values

    # weights and visits ----------------------------------------------------------------

    def begin_epoch(self, fed: Federation, s: State, form: Variant) -> None:
        """Gradients that are due, everybody's weights for every lam, and who visits whom."""
        s.epoch += 1
        self.hear(fed, s, form)
        own = None if s.trying else s.lam
        self.weigh(fed, s, self.tried if own is None else own.unique().tolist(), own)
        travelling = s.alpha[s.trying :]  # in the trial the first stack stays at home
        visits = max(1, round(float((travelling > 0).sum(2).double().mean())))
        random = fed.random("plan")
        plans = [
            shuffling.visits(shuffling.in_proportion(alpha, visits, random), s.kin, random)
            for alpha in travelling
        ]
        s.length = max([1, *(1 + int(plan[:, 0].max()) for plan in plans if len(plan))])
        s.plan, s.hop, s.share = shuffling.together(plans, s.length, random), 0, s.length / visits

    def visit_hosts(self, fed: Federation, s: State, form: Variant) -> None:
        """One round of visits, of every stack of models."""
        present = fed.sample()
        for stack in range(s.trying, len(s.alpha)):
            now = s.plan[(s.plan[:, 0] == stack - s.trying) & (s.plan[:, 1] == s.hop)].long()
            now = now[torch.isin(now[:, 3], present)]
            if len(now):
                self.send(fed, s, now[:, 3], now[:, 2], stack, form, s.share)
        s.hop += 1

    def send(
        self, fed: Federation, s: State, at: Tensor, of: Tensor, stack: int, form: Variant,
        share: float,
    ) -> None:  # fmt: skip
        """Models of the clients `of` train at others, and come back."""
        models, work = s.v.at(stack * fed.size + of), {"lr": self.lr, **self.work}
        fed.move(stay, at, models, form, share=share, **work)

    # use -------------------------------------------------------------------------------

    def personal(self, fed: Federation, s: State) -> Requests:
        steps = (self.tune_steps * s.tuned).to(s.x)
        own = {"x": self.own_models(s), "local_steps": steps}
        return fed.request(fine_tune, each=own, lr=self.home_lr, **self.moves)

    def own_models(self, s: State) -> Rows:
        """Each client's model, as its way has it now."""
        clients = torch.arange(len(s.lam))
        places = clients.clone()
        if s.trying:
            for stack, lam in enumerate(self.tried):
                places += stack * len(clients) * (s.lam == lam)
        shared = s.lam.isinf() | (s.lam > 0) & (s.epoch == 0)
        models: Table = s.v
        return models.at(torch.where(shared, -1 - clients, places), self.one_for_all(s))

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        """In the way that most clients chose: its weights by its gradient at w, and as many rounds
        of visits, from w, as the others had. Where hosts cannot be visited: by its weights the
        mean of their models. Where most use w, or are alone: w."""
        lam = float(s.lam.mode().values)
        if s.epoch == 0 or lam in (0, inf):
            return super().welcome(fed, s, new, hosts)
        alpha = self.weights_for(fed, s, new, lam)
        if not hosts:
            return mixing.mean_of_kin(alpha, self.own_models(s), s.x)
        v: Tensor = s.x.repeat(new.size, 1)
        random = new.random("tour")
        visits = shuffling.in_proportion(alpha, s.rounds - self.warm_up, random)
        for host in shuffling.tours(visits, random):
            for where, going in ((fed, host < fed.size), (new, host == fed.size)):
                at = host[going] if where is fed else going.nonzero()[:, 0]
                if len(at):
                    work = {"each": {"v": v[going]}, "share": 1.0, "lr": self.lr, **self.work}
                    v[going] = where.look(where.request(stay, at, **work))["v"]
        return v

    def results(self, s: State) -> dict[str, Tensor]:
        """mixing: everybody's weights. sharing: lam_rel (0: alone, infinite: one model for all),
        steps at home, and how sure it is that this is better than alone."""
        several = len(s.alpha) > 1
        chosen = [s.lam == lam for lam in self.tried] if several else [s.lam.isfinite()]
        facts = torch.stack([s.lam, self.tune_steps * s.tuned.double(), s.sure], 1)
        return {"mixing": self.all_weights(s, chosen), "sharing": facts}


def stay(client: Client, v: Tensor, share: Any, lr: Any, **work: Any) -> dict[str, Tensor]:
    """A model trains at its host, `share` times the usual number of steps: rounded up or down at
    random, so that it is right on average."""
    descent = Descent(client, lr, work)
    turns = share * descent.steps
    if not isinstance(turns, float) or not turns.is_integer():
        turns = (turns + client.uniform("stay").double()).floor()
    descent.steps = turns
    return {"v": descent.run(v)}
