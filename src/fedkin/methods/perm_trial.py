"""The trial of PERM: how widely each client shares, found out on examples that were held out."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated, Any

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Step
from fedkin.core.replies import Replies
from fedkin.core.tables import Rows
from fedkin.core.variants import HELD_OUT, Variant
from fedkin.methods.base import Count, CountOrZero, NotNegative, Positive, State, sgd
from fedkin.methods.perm_kin import LearnsKin
from fedkin.methods.shared import choosing

# lam_rel that is tried beside the extremes 0 (alone) and infinity (one model for all): others lay
# between these, and more of them make the choice less sure
TRIED = (1.0,)
# rounds between two judgements in the trial, and how many times its length it may last
JUDGED_EVERY, LONGEST = 10, 3


@dataclass
class TriesWays(LearnsKin):
    """The part of PERM that finds out which lam suits each client, and whether steps at home do.

    Ways are stacks of models v, one for each lam that is tried, and w; each is judged as it is and
    after `tune_steps` steps at home, by its losses on what clients hold out.
    """

    warm_up: Annotated[CountOrZero, Doc("rounds of FedAvg before there are personal models")] = 10
    trial: Annotated[Count, Doc("rounds in which several lam are tried; more if in doubt")] = 20
    lam_rel: Annotated[
        NotNegative | None,
        Doc("lam in units of median(|g_i - g_j|^2)*mean(n), without a trial (none: by trial)"),
    ] = None
    tune_steps: Annotated[CountOrZero, Doc("steps at home before a model is used")] = 30
    tune_lr: Annotated[Positive | None, Doc("their size (none: a third of lr)")] = None

    @property
    def not_private(self) -> str:  # type: ignore[override]
        if self.lam_rel is not None:
            return ""
        return "in its trial clients tell losses on their own examples (none is made with lam_rel)"

    @property
    def tried(self) -> tuple[float, ...]:
        """The lam_rel of every stack of models; FedAvg's w is one more."""
        return (0.0, *TRIED) if self.lam_rel is None else (self.lam_rel,)

    def lams(self) -> Tensor:
        return torch.tensor([*self.tried, inf], dtype=torch.float64)

    @property
    def home_lr(self) -> float:
        return self.lr / 3 if self.tune_lr is None else self.tune_lr

    def one_for_all(self, s: State) -> Tensor:
        """FedAvg's model, for every client: [1 or N, d]."""
        shared: Tensor = s.x[None]
        return shared

    def compare_ways(self, fed: Federation, s: State) -> None:
        """Judge what is tried, from time to time, and at the end of the trial choose."""
        done = s.rounds - self.warm_up
        late = done == self.trial or (done > self.trial and not bool((s.count > 0).any()))
        if done % JUDGED_EVERY == 0 or late:
            self.judge(fed, s)
            if done >= self.trial and self.is_clear(s, done):
                self.settle(s)

    def judge(self, fed: Federation, s: State) -> None:
        """Losses of everybody's models on examples they never met, and what follows from them."""
        present = fed.sample()
        stacks = [present + k * fed.size for k in range(len(self.tried))]
        models = s.v.at(torch.stack([*stacks, -1 - present], 1), self.one_for_all(s))
        home = {"tune_lr": self.home_lr, "tune_steps": self.tune_steps, **self.moves}
        r = self.ask(fed, s, losses_of, present, present, models, HELD_OUT, **home)
        if not r.arrived.any():
            return
        heard, ways = present[r.arrived], 2 * (len(self.tried) + 1)
        count, total, product = (r[name][r.arrived].cpu() for name in ("count", "total", "product"))
        judged = choosing.Losses(count[:, 0], total, product.unflatten(1, (total.shape[1], -1)))
        for alike in self.alike(s, heard):
            own, at = judged.of(alike).calibrated(ways), heard[alike]
            s.count[at], s.total[at], s.product[at] = own.count, own.total, own.product
        losses = self.held_out_losses(s)
        now = losses.means.view(1, -1, 2).amin(2)  # with or without steps at home
        s.course = torch.cat([s.course[-1:], now])
        way, s.sure = choosing.choose(losses, alone=(0, 1))
        s.lam, s.tuned = self.lams()[way // 2], way % 2 == 1

    def alike(self, s: State, at: Tensor) -> list[Tensor]:
        """Places in `at` of clients whose models are comparable: all of them."""
        return [torch.arange(len(at))]

    def held_out_losses(self, s: State) -> choosing.Losses:
        """Every way's, as it is and after steps at home."""
        return choosing.Losses(s.count, s.total, s.product)

    def is_clear(self, s: State, done: int) -> bool:
        """Whether to choose now: somebody was heard, and no other way is about to be better."""
        if not (s.count > 0).any():
            return False
        return done >= LONGEST * self.trial or not choosing.overtaken(s.course)

    def settle(self, s: State) -> None:
        """Everybody goes on with the model of the way that was chosen."""
        n = len(s.lam)
        for stack, lam in enumerate(self.tried):
            chosen = (s.lam == lam).nonzero()[:, 0]
            if stack:
                s.v.copy(stack * n + chosen, chosen)
        s.v.keep(n)
        s.trying, s.hop = 0, s.length
        s.since = s.epoch + 1  # gradients on all data take the place of those in the trial

    def ask(
        self, fed: Federation, s: State, step: Step, at: Tensor, of: Tensor, v: Rows,
        form: Variant, **hyper: Any,
    ) -> Replies:  # fmt: skip
        """A step at some clients, each with models v of the clients `of`."""
        return fed.map(step, at, each={"v": v}, variant=form, **hyper)


def losses_of(
    client: Client, v: Tensor, tune_lr: Any, tune_steps: Any, **moves: Any
) -> dict[str, Tensor]:
    """Of a client's models [B, k, d], each as it is and after steps at home: their losses on what
    is held out."""
    rows, work = [], {"local_steps": tune_steps, **moves}
    for y in v.unbind(1):
        for model in (y.contiguous(), sgd(client, y.contiguous(), tune_lr, work)):
            said = client.answers(model, "validation")
            rows.append([choosing.losses_by_sharpness(a) for a in said])
    if not rows[0]:  # nobody here has so many examples that some can be held out
        tries = len(choosing.sharpnesses(client.problem.spec.loss))
        rows = [[v.new_zeros(len(v), tries, 1, dtype=torch.float64)] for _ in rows]
    losses = torch.cat([torch.cat(stretches, 2) for stretches in rows], 1)
    count = client.problem.validation.sizes[client.who].double()[:, None].to(v.device)
    return {"count": count, "total": losses.sum(2), "product": (losses @ losses.mT).flatten(1)}
