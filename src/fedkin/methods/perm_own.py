"""PERM where clients' models differ in shape, and nobody is to end below its own trained alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Request, Requests, Step
from fedkin.core.replies import Replies
from fedkin.core.tables import Rows
from fedkin.core.variants import PLAIN, Variant
from fedkin.methods.base import State
from fedkin.methods.fedavg import fine_tune
from fedkin.methods.perm import Perm, stay
from fedkin.methods.shared import choosing
from fedkin.methods.shared.optimisers import Descent

# rounds of the warm-up after which clients choose between w and their model alone
EARLY_CHOICES = (2, 5, 10, 20)


@dataclass
class PermOwn(Perm):
    """PERM with models of several shapes.

    Model i visits only clients that can carry it: those whose own has as many parameters (`sizes`).
    Rows of tables are as long as the longest model, with zeros at the end. FedAvg has a model
    of every shape: of client i it is means[kinds[i]].

    A client that goes alone has what `local` would have given it: the model is trained on all its
    data from its own first one, with as many steps. When the trial ends, such a client makes up
    for the rounds in which it trained on four fifths. Clients choose in the warm-up too, so that
    this holds in short runs, and choices are made among models of the same shape.
    """

    @property
    def not_private(self) -> str:  # type: ignore[override]
        return "clients are asked in groups that have the same architecture"

    def forms(
        self, fed: Federation, s: State, at: Tensor, form: Variant = PLAIN
    ) -> Iterator[tuple[Variant, Tensor]]:
        """Clients by their models' shape: that form of the problem, and places among `at`."""
        raise NotImplementedError

    def first_models(self, fed: Federation, s: State) -> State:
        """What is remembered beside PERM's state."""
        s.v = fed.room.table(len(self.tried) * fed.size, self.one_for_all(s))
        s.rounds_alone = torch.zeros(fed.size, dtype=torch.int64)
        s.behind = torch.full((fed.size,), bool(s.trying))
        return s

    def one_for_all(self, s: State) -> Tensor:
        rows: Tensor = s.means[s.kinds.to(s.means.device)]
        return rows

    def round(self, fed: Federation, s: State) -> None:
        present = fed.sample()
        s.rounds_alone[present[s.behind[present]]] += 1
        super().round(fed, s)
        if s.trying and s.rounds <= self.warm_up and s.rounds in EARLY_CHOICES:
            s.v.begin(self.one_for_all(s))
            self.judge(fed, s)
            s.lam[s.lam > 0] = inf  # there are no visits yet
        if not s.trying:
            s.behind &= s.lam == 0
            self.catch_up(fed, s, present[s.behind[present]])

    def alike(self, s: State, at: Tensor) -> list[Tensor]:
        return [(s.sizes[at] == size).nonzero()[:, 0] for size in s.sizes[at].unique()]

    def judge(self, fed: Federation, s: State) -> None:
        """What suits a model depends on its shape: clients with the same one choose by themselves,
        where any was heard."""
        super().judge(fed, s)
        for size in s.sizes[s.count > 0].unique():
            at = s.sizes == size
            losses = self.held_out_losses(s).of(at)
            way, s.sure[at] = choosing.choose(losses, alone=(0, 1))
            s.lam[at], s.tuned[at] = self.lams()[way // 2], way % 2 == 1

    # alone -----------------------------------------------------------------------------

    def catch_up(self, fed: Federation, s: State, at: Tensor) -> None:
        """Clients that go alone train on all their data what they would have by now."""
        for form, places in self.forms(fed, s, at):
            some = at[places]
            each = {"rounds": s.rounds_alone[some].to(s.x)}
            r = fed.map(alone_so_far, some, each=each, variant=form, lr=self.lr, **self.work)
            if r.arrived.any():
                rows = r["model"][r.arrived]
                padded = rows.new_zeros(len(rows), s.v.width)
                padded[:, : rows.shape[1]] = rows
                s.v.write(some[r.arrived], padded)
                s.behind[some[r.arrived]] = False

    # models of several shapes ------------------------------------------------------------

    def distances(self, s: State) -> Tensor:
        cannot = s.sizes < s.sizes[:, None]  # the client of a column cannot carry a row's model
        return super().distances(s).masked_fill(cannot, inf)

    def barred(self, s: State, kin: Tensor) -> Tensor:
        cannot: Tensor = s.sizes[kin] < s.sizes[:, None]
        return cannot

    def send(
        self, fed: Federation, s: State, at: Tensor, of: Tensor, stack: int, form: Variant,
        share: float,
    ) -> None:  # fmt: skip
        places, work = stack * fed.size + of, {"lr": self.lr, **self.work}
        r = self.ask(fed, s, stay, at, of, s.v.at(places), form, share=share, **work)
        if r.arrived.any():
            s.v.write(places[r.arrived], r["v"][r.arrived])

    def ask(
        self, fed: Federation, s: State, step: Step, at: Tensor, of: Tensor, v: Rows,
        form: Variant, **hyper: Any,
    ) -> Replies:  # fmt: skip
        arrived, rows = torch.zeros(len(at), dtype=torch.bool), dict[str, Tensor]()
        # whatever the weights say: no host is given what it cannot carry
        able = s.sizes[at] >= s.sizes[of]
        for own, places in self.forms(fed, s, of, form):
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
        models, requests = self.own_models(s), list[Request]()
        steps = (self.tune_steps * s.tuned).to(s.x)
        behind = s.behind & (s.lam == 0)
        for form, places in self.forms(fed, s, torch.arange(fed.size)):
            at, late = places[~behind[places]], places[behind[places]]
            own = models[at].read()[:, : fed.problem.variant(form).size]
            each = {"x": own, "local_steps": steps[at]}
            tuned = fed.request(
                fine_tune, at, each=each, variant=form, lr=self.home_lr, **self.moves
            )
            rounds = {"rounds": s.rounds_alone[late].to(s.x)}
            anew = fed.request(
                alone_so_far, late, each=rounds, variant=form, lr=self.lr, **self.work
            )
            requests += [request for request in (tuned, anew) if len(request.at)]
        return tuple(requests)


def alone_so_far(client: Client, rounds: Tensor, lr: Any, **work: Any) -> dict[str, Tensor]:
    """What a client would have after so many rounds of training alone."""
    descent = Descent(client, lr, work)
    descent.steps = rounds * descent.steps
    return {"model": descent.run(client.initial)}
