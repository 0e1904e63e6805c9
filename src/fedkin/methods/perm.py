"""PERM as it is best used: who to learn with, and how widely, found out by trying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests, Step
from fedkin.core.replies import Replies
from fedkin.core.variants import HELD_OUT, PLAIN, Variant
from fedkin.methods.base import Count, CountOrZero, NotNegative, Positive, State, sgd
from fedkin.methods.fedavg import FedAvg, fine_tune
from fedkin.methods.perm_printed import gradient_at
from fedkin.methods.registry import register
from fedkin.methods.shared import choosing, mixing, shuffling
from fedkin.methods.shared.optimisers import Descent

# lam_rel that is tried beside the extremes 0 (alone) and infinity (one model for all): others lay
# between these, and more of them make the choice less sure
TRIED = (1.0,)
# gradients are compared at w after so many rounds: later they are small, and mostly noise
EARLY = 5
# rounds between two judgements in the trial
JUDGED_EVERY = 10


@register("perm")
@dataclass
class Perm(FedAvg):
    """PERM (Deng et al., 2023), with lam chosen for each client, extremes included.

    Client i minimises Phi_i(v) = sum_j alpha_i(j)*f_j(v). After `warm_up` rounds of FedAvg, for
    w, clients j send g_j, the gradient of f_j at w as it was after five of them, and
      alpha_i = argmin sum_j alpha(j)*|g_i - g_j|^2 + lam*sum_j alpha(j)^2/n_j  over the simplex.
    In an epoch of T rounds each model i, from w, makes S visits, alpha_i(c)*S of them on average
    at client c and no two models at one client, of K*T/S steps v_i <- v_i - lr*g_c(v_i). It is
    used as it is or after `tune_steps` steps at home.

    lam: in the `trial` that follows the warm-up, models for lam = 0 (alone), lam_rel = 1 and lam
    infinite (w itself: FedAvg goes on) are trained on four fifths of every client's data and
    judged on the rest. Each client goes on, on all its data, in the way with the smallest loss to
    be expected from everybody's losses and its own (see shared/choosing.py).

    A client that is lost or does not take part: the model due there comes home unchanged. It
    sends its gradient when it can; before that it learns alone and nobody from it. If it was not
    heard in the trial it chooses as most do.
    """

    # a gradient and a visiting model's change, where no trial is made
    releases: ClassVar[tuple[int, int]] = (1, 2)

    refuses: ClassVar[Mapping[str, str]] = {"optimiser_state": "clients train each other's models"}

    warm_up: Annotated[CountOrZero, Doc("rounds of FedAvg before there are personal models")] = 20
    trial: Annotated[Count, Doc("rounds in which several lam are tried")] = 20
    lam_rel: Annotated[
        NotNegative | None,
        Doc("lam in units of median(|g_i - g_j|^2)*mean(n), without a trial (none: by trial)"),
    ] = None
    nearest: Annotated[Count | None, Doc("learn from so many clients at most")] = None
    gradient_batches: Annotated[
        Count | None, Doc("minibatches per gradient sent (none: all training data)")
    ] = None
    sketch: Annotated[Count | None, Doc("reduce gradients to so many numbers (none: whole)")] = None
    tune_steps: Annotated[CountOrZero, Doc("steps at home before a model is used")] = 10
    tune_lr: Annotated[Positive | None, Doc("their size (none: lr)")] = None

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

    def init(self, fed: Federation) -> State:
        x, n, ways = fed.initial_model(), fed.size, 2 * (len(self.tried) + 1)
        given = inf if self.lam_rel is None else self.lam_rel
        return State(
            x=x, early=x, since=1, v=x.repeat(len(self.tried), n, 1),
            g=x.new_zeros(n, self.sketch or len(x)),
            heard=torch.zeros(n, dtype=torch.int64), tuned=torch.full((n,), given < inf),
            lam=torch.full((n,), given, dtype=torch.float64), sure=torch.full((n,), 0.5).double(),
            alpha=torch.full((1, n, n), 1 / n).double(), trying=int(self.lam_rel is None),
            plan=torch.zeros(1, 1, n, dtype=torch.int64), hop=1, share=1.0, epoch=0, rounds=0,
            count=torch.zeros(n).double(), total=torch.zeros(n, ways).double(),
            product=torch.zeros(n, ways, ways).double(),
        )  # fmt: skip

    def round(self, fed: Federation, s: State) -> None:
        s.rounds += 1
        form, use_w = HELD_OUT if s.trying else PLAIN, s.lam.isinf()
        early = s.rounds <= self.warm_up
        if early or bool(use_w.any()) or s.trying:
            everybody = early or s.trying or bool(use_w.all())
            self.average(fed, s, fed.sample() if everybody else self.half(fed), form)
        if s.rounds <= min(EARLY, self.warm_up):
            s.early = s.x
        if early:
            return
        if s.epoch == 0:
            s.v = self.one_for_all(s).expand_as(s.v).clone()
        if s.hop == s.plan.shape[1]:
            self.begin_epoch(fed, s, form)
        self.visit_hosts(fed, s, form)
        done = s.rounds - self.warm_up
        if s.trying and (done % JUDGED_EVERY == 0 or done >= self.trial):
            self.judge(fed, s)
            if done >= self.trial and bool((s.count > 0).any()):
                self.settle(s)
        fed.record(own_weight=s.alpha.diagonal(dim1=1, dim2=2).mean())

    def half(self, fed: Federation) -> Tensor:
        """Half of those who take part: they train w where some use it and others do not."""
        present = fed.sample()
        order = torch.from_numpy(fed.random("half").permutation(len(present)))
        return present[order[: max(1, len(present) // 2)].sort().values]

    # weights and visits ----------------------------------------------------------------

    def begin_epoch(self, fed: Federation, s: State, form: Variant) -> None:
        """Gradients that are due, everybody's weights for every lam, and who visits whom."""
        s.epoch += 1
        present = fed.sample()
        due = present[s.heard[present] < s.since]
        r = fed.map(gradient_at, due, {"x": s.early}, variant=form, batches=self.gradient_batches)
        if r.arrived.any():
            whole = r["g"][r.arrived]
            s.g[due[r.arrived]] = mixing.sketch(whole, self.sketch) if self.sketch else whole
            s.heard[due[r.arrived]] = s.epoch
        s.alpha = self.weights_of(fed, s)
        visits = max(1, round(float((s.alpha > 0).sum(2).double().mean())))
        random = fed.random("plan")
        plans = [
            shuffling.packed(shuffling.in_proportion(alpha, visits, random), random)
            for alpha in s.alpha
        ]
        rounds = max(1, *map(len, plans))
        s.plan = torch.stack([
            torch.cat([plan, plan.new_full((rounds - len(plan), fed.size), -1)])
            [torch.from_numpy(random.permutation(rounds))] for plan in plans
        ])  # fmt: skip
        s.hop, s.share = 0, rounds / visits

    def weights_of(self, fed: Federation, s: State) -> Tensor:
        """alpha for every stack of models: [L, N, N]."""
        z, unit = mixing.only_nearest(self.distances(s), self.nearest), self.unit(fed, s)
        found = {
            lam: mixing.simplex_weights(z, fed.samples, lam * unit)
            for lam in (self.tried if s.trying else s.lam.unique().tolist())
            if lam < inf
        }
        if s.trying:
            return torch.stack(list(found.values()))
        alpha = torch.zeros(1, fed.size, fed.size).double()
        for lam, rows in found.items():
            alpha[0, s.lam == lam] = rows[s.lam == lam]
        return alpha

    def distances(self, s: State) -> Tensor:
        """z_ij: how much client j's data would mislead client i, for all pairs."""
        z, unheard = mixing.squared_distances(s.g).cpu(), s.heard == 0
        return z.masked_fill(unheard[:, None] | unheard, inf).fill_diagonal_(0)

    def unit(self, fed: Federation, s: State) -> float:
        """What lam_rel is in units of."""
        return mixing.scale_free(self.distances(s), fed.samples, 1.0)

    def visit_hosts(self, fed: Federation, s: State, form: Variant) -> None:
        """One round of visits, of every stack of models."""
        present, s.v = fed.sample(), s.v.clone()
        for v, plan in zip(s.v, s.plan, strict=True):
            host = plan[s.hop]
            going = (host >= 0) & torch.isin(host, present)
            if going.any():
                of, work = going.nonzero()[:, 0], {"share": s.share, "lr": self.lr, **self.work}
                r = self.ask(fed, s, stay, host[going], of, v[going], form, **work)
                v[going] = r.fill("v", v[going])
        s.hop += 1

    def ask(
        self, fed: Federation, s: State, step: Step, at: Tensor, of: Tensor, v: Tensor,
        form: Variant, **hyper: Any,
    ) -> Replies:  # fmt: skip
        """A step at some clients, each with models v of the clients `of`."""
        return fed.map(step, at, each={"v": v}, variant=form, **hyper)

    # which lam -------------------------------------------------------------------------

    def judge(self, fed: Federation, s: State) -> None:
        """Losses of everybody's models on examples they never met, and what follows from them."""
        present = fed.sample()
        models = torch.cat([s.v, self.one_for_all(s)[None]]).transpose(0, 1)
        home = {"tune_lr": self.home_lr, "tune_steps": self.tune_steps, **self.moves}
        r = self.ask(fed, s, losses_of, present, present, models[present], HELD_OUT, **home)
        if not r.arrived.any():
            return
        for name in ("count", "total", "product"):
            at, table = present[r.arrived], getattr(s, name)
            table[at] = r[name][r.arrived].cpu().view(len(at), *table.shape[1:])
        losses = choosing.Losses(s.count, s.total, s.product)
        way, s.sure = choosing.choose(losses, alone=(0, 1))
        s.lam, s.tuned = self.lams()[way // 2], way % 2 == 1

    def settle(self, s: State) -> None:
        """Everybody goes on with the model of the way that was chosen."""
        s.v, s.trying, s.hop = self.own_models(s)[None], 0, s.plan.shape[1]
        s.since = s.epoch + 1  # gradients on all data take the place of those in the trial

    # use -------------------------------------------------------------------------------

    @property
    def home_lr(self) -> float:
        return self.lr if self.tune_lr is None else self.tune_lr

    def personal(self, fed: Federation, s: State) -> Requests:
        models = self.own_models(s)
        steps = (self.tune_steps * s.tuned).to(models)
        return fed.request(
            fine_tune, each={"x": models, "local_steps": steps}, lr=self.home_lr, **self.moves
        )

    def own_models(self, s: State) -> Tensor:
        """Each client's model, as its way has it now."""
        shared = self.one_for_all(s)
        models: Tensor = s.v[0].clone() if s.epoch else shared.clone()
        if s.trying and s.epoch:
            for lam, stack in zip(self.tried, s.v, strict=True):
                models[s.lam == lam] = stack[s.lam == lam]
        models[s.lam.isinf()] = shared[s.lam.isinf()]
        return models

    def one_for_all(self, s: State) -> Tensor:
        """FedAvg's model, for every client: [N, d]."""
        models: Tensor = s.x.expand_as(s.v[0])
        return models

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        """In the way that most clients chose: its weights by its gradient at w, and as many rounds
        of visits, from w, as the others had. Where hosts cannot be visited: by its weights the
        mean of their models. Where most use w, or are alone: w."""
        lam = float(s.lam.mode().values)
        if s.epoch == 0 or lam in (0, inf):
            return super().welcome(fed, s, new, hosts)
        ask = new.request(gradient_at, shared={"x": s.early}, batches=self.gradient_batches)
        g, unit = new.look(ask)["g"], self.unit(fed, s)
        alpha = mixing.weights_of_newcomers(
            mixing.sketch(g, self.sketch) if self.sketch else g, new.samples, s.g, fed.samples,
            s.heard > 0, lam * unit,
        )  # fmt: skip
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
        n, stacks = len(s.lam), self.tried if len(s.alpha) > 1 else (None,)
        alpha = torch.full((n, n), 1 / n).double()
        for lam, rows in zip(stacks, s.alpha, strict=True):
            chosen = s.lam.isfinite() if lam is None else s.lam == lam
            alpha[chosen] = rows[chosen]
        facts = torch.stack([s.lam, self.tune_steps * s.tuned.double(), s.sure], 1)
        return {"mixing": alpha, "sharing": facts}


def stay(client: Client, v: Tensor, share: Any, lr: Any, **work: Any) -> dict[str, Tensor]:
    """A model trains at its host, `share` times the usual number of steps: rounded up or down at
    random, so that it is right on average."""
    descent = Descent(client, lr, work)
    turns = share * descent.steps
    if not isinstance(turns, float) or not turns.is_integer():
        turns = (turns + client.uniform("stay").double()).floor()
    descent.steps = turns
    return {"v": descent.run(v)}


def losses_of(
    client: Client, v: Tensor, tune_lr: Any, tune_steps: Any, **moves: Any
) -> dict[str, Tensor]:
    """Of a client's models [B, k, d], each as it is and after steps at home: their losses on what
    is held out."""
    rows, work = [], {"local_steps": tune_steps, **moves}
    for y in v.unbind(1):
        for model in (y.contiguous(), sgd(client, y.contiguous(), tune_lr, work)):
            rows.append([choosing.own_losses(a) for a in client.answers(model, "validation")])
    if not rows[0]:  # nobody here has so many examples that some can be held out
        rows = [[v.new_zeros(len(v), 1, dtype=torch.float64)] for _ in rows]
    losses = torch.stack([torch.cat(stretches, 1) for stretches in rows], 1)
    count = client.problem.validation.sizes[client.who].double()[:, None].to(v.device)
    return {"count": count, "total": losses.sum(2), "product": (losses @ losses.mT).flatten(1)}
