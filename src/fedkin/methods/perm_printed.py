"""PERM as printed: every client learns who to learn with, and its model goes round to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests, Step
from fedkin.core.replies import Replies
from fedkin.methods.base import Count, CountOrZero, NotNegative, Positive, State, sgd, use
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.registry import register
from fedkin.methods.shared import mixing, shuffling


@register("perm-two-stage")
@dataclass
class PermTwoStage(FedAvg):
    """PERM in two stages (Deng et al., 2023): one model for all, then one for each.

    Client i minimises Phi_i(v) = sum_j alpha_i(j)*f_j(v). Stage one, `warm_up` rounds: FedAvg,
    for w. Then every client j sends g_j, the gradient of f_j at w, and over the simplex
      alpha_i = argmin sum_j alpha(j)*|g_i - g_j|^2 + lam*sum_j alpha(j)^2/n_j.
    Stage two: from v_i = w, in every round each model i visits a client c, no two the same
    one, for K steps v_i <- v_i - eta*T*alpha_i(c)*g_c(v_i). In an epoch of T rounds it visits
    once each client it gives weight to. `cyclic` is the paper's schedule: T = N, in round j
    model i at client sigma((i + j) mod N), sigma a random order for each epoch; visits of
    weight zero are not made. `packed` leaves no gaps: T is the most visits of any one.

    A client that is lost or does not take part: the model due there comes home unchanged. It
    sends its gradient when it can; before that it learns alone and nobody learns from it.
    """

    # a gradient and a visiting model's change, each protected by itself: see the guide on privacy
    releases: ClassVar[tuple[int, int]] = (1, 2)

    refuses: ClassVar[Mapping[str, str]] = {"optimiser_state": "clients train each other's models"}

    warm_up: Annotated[CountOrZero, Doc("rounds of FedAvg before there are personal models")] = 20
    gradient_batches: Annotated[
        Count | None, Doc("minibatches per gradient sent (none: all training data)")
    ] = None
    sketch: Annotated[Count | None, Doc("reduce gradients to so many numbers (none: whole)")] = None
    lam_rel: Annotated[
        NotNegative, Doc("how widely to share: lam in units of median(|g_i - g_j|^2)*mean(n)")
    ] = 1.0
    lam: Annotated[NotNegative | None, Doc("lam itself, in place of lam_rel")] = None
    nearest: Annotated[Count | None, Doc("learn from so many clients at most")] = None
    solver: Annotated[Literal["exact", "projected-gradient"], Doc("how weights are found")] = (
        "exact"
    )
    solver_steps: Annotated[
        Count | None, Doc("T_alpha steps of projected-gradient (none: until it has converged)")
    ] = None
    visit_lr: Annotated[Positive | None, Doc("in place of lr on visits (none: lr)")] = None
    schedule: Annotated[Literal["packed", "cyclic"], Doc("who visits whom when")] = "packed"
    step_limit: Annotated[
        Positive | Literal["none"],
        Doc("shorten a model's steps alike so that none exceeds this many times lr"),
    ] = 4.0
    decay: Annotated[NotNegative, Doc("steps of size lr/(1 + decay*epoch)")] = 0.0
    radius: Annotated[
        Positive | None, Doc("keep models in a ball of this radius, after every epoch")
    ] = None
    polish: Annotated[
        NotNegative, Doc("1/L of a last step v_i - (1/L)*grad Phi_i(v_i), with one more epoch")
    ] = 0.0

    def init(self, fed: Federation) -> State:
        x, n = fed.initial_model(), fed.size
        return State(
            x=x, v=x.repeat(n, 1), g=x.new_zeros(n, self.sketch or len(x)),
            heard=torch.zeros(n, dtype=torch.int64), alpha=torch.full((n, n), 1 / n).double(),
            plan=torch.zeros(1, n, dtype=torch.int64), hop=1, epoch=0, rounds=0, polished=0,
        )  # fmt: skip

    def round(self, fed: Federation, s: State) -> None:
        s.rounds += 1
        if s.rounds <= self.warm_up:
            super().round(fed, s)
            fed.record(visits=0, own_weight=1 / fed.size)
            return
        if s.epoch == 0:
            s.v = s.x.repeat(fed.size, 1)
        begins = s.hop == len(s.plan)
        s.epoch += begins
        self.learn_weights(fed, s)
        if begins:
            s.plan, s.hop = self.draw_plan(fed, s), 0
        visits = self.shuffle(fed, s)
        fed.record(visits=visits, own_weight=s.alpha.diagonal().mean())

    def learn_weights(self, fed: Federation, s: State) -> None:
        """Hear the gradients that are due; if any came, find everybody's weights."""
        present = fed.sample()
        due = present[self.due(s)[present]]
        r = self.gradients(fed, s, due)
        if not r.arrived.any():
            return
        s.g[due[r.arrived]], s.heard[due[r.arrived]] = r["g"][r.arrived], s.epoch
        z = self.distances(fed, s)
        lam = mixing.scale_free(z, fed.samples, self.lam_rel) if self.lam is None else self.lam
        z = mixing.only_nearest(z + self.costs(fed, s, z), self.nearest)
        s.alpha = mixing.simplex_weights(z, fed.samples, lam)
        if self.solver == "projected-gradient":
            exact = s.alpha
            s.alpha = mixing.projected_gradient(z, fed.samples, lam, self.solver_steps)
            fed.record(weights_error=(s.alpha - exact).abs().max())

    def distances(self, fed: Federation, s: State) -> Tensor:
        """z_ij: how much client j's data would mislead client i, for all pairs."""
        z, unheard = mixing.squared_distances(s.g).cpu(), s.heard == 0
        return z.masked_fill(unheard[:, None] | unheard, torch.inf).fill_diagonal_(0)

    def costs(self, fed: Federation, s: State, z: Tensor) -> Tensor:
        """What it costs to learn from client j beside z_ij."""
        return torch.zeros(())

    def due(self, s: State) -> Tensor:
        """Whose gradient is wanted: w stays, so once is enough."""
        never: Tensor = s.heard == 0
        return never

    def gradients(self, fed: Federation, s: State, due: Tensor) -> Replies:
        size = () if self.sketch is None else (self.sketch,)
        return fed.map(gradient_at, due, {"x": s.x}, batches=self.gradient_batches, sketch=size)

    def draw_plan(self, fed: Federation, s: State) -> Tensor:
        """Which client each model visits in the rounds of an epoch: [T, N], -1 for none."""
        draw = shuffling.packed if self.schedule == "packed" else shuffling.cyclic
        return draw(s.alpha > 0, fed.random("plan"))

    def shuffle(self, fed: Federation, s: State) -> int:
        """One round of visits; tells how many."""
        host, rounds = s.plan[s.hop], len(s.plan)
        weight = rounds * s.alpha[torch.arange(fed.size), host]
        going = (host >= 0) & (weight > 0) & torch.isin(host, fed.sample())
        weight = self.limited(weight, rounds * s.alpha.amax(1))
        lr = self.lr if self.visit_lr is None else self.visit_lr
        work = {"lr": lr / (1 + self.decay * (s.epoch - 1)), **self.work}
        s.v[going] = self.at_hosts(fed, s, visit, going, host, weight, s.v[going], **work)
        s.hop += 1
        if s.hop == rounds:
            s.v = self.project(s.v)
        return int(going.sum())

    def limited(self, weight: Tensor, largest: Tensor) -> Tensor:
        """Steps, in units of lr, shortened where a model's largest is beyond the limit."""
        if isinstance(self.step_limit, str):
            return weight
        return weight / (largest / self.step_limit).clamp(min=1)

    def at_hosts(
        self, fed: Federation, s: State, step: Step, going: Tensor, host: Tensor, weight: Tensor,
        lost: Tensor, **hyper: Any,
    ) -> Tensor:  # fmt: skip
        """What the hosts of the models that go answer, a row each; `lost` rows where none did."""
        each = {"v": s.v[going], "weight": weight[going].to(s.v)}
        return fed.map(step, at=host[going], each=each, **hyper).fill("v", lost)

    def project(self, v: Tensor) -> Tensor:
        """The nearest points of the domain."""
        if self.radius is None:
            return v
        too_long: Tensor = (v.norm(dim=1, keepdim=True) / self.radius).clamp(min=1)
        return v / too_long

    def finish(self, fed: Federation, s: State) -> None:
        """The last step; a client lost in it is missing from the gradients."""
        if not self.polish or not s.epoch:
            return
        slope = torch.zeros_like(s.v)
        for host in self.draw_plan(fed, s):
            going, weight = host >= 0, s.alpha[torch.arange(fed.size), host]
            nothing = torch.zeros_like(s.v[going])
            slope[going] += self.at_hosts(fed, s, weighed_gradient, going, host, weight, nothing)
        s.final, s.polished = self.project(s.v - self.polish * slope), s.rounds

    def personal(self, fed: Federation, s: State) -> Requests:
        if s.epoch == 0:
            return super().personal(fed, s)
        return fed.request(use, each={"model": s.final if s.polished == s.rounds else s.v})

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        """Its gradient at w, its weights, and its visits: from w, as many epochs as the others had.

        Where hosts cannot be visited: by its weights the mean of their models.
        """
        if s.epoch == 0:
            return super().welcome(fed, s, new, hosts)
        size = () if self.sketch is None else (self.sketch,)
        asked = new.request(
            gradient_at, shared={"x": s.x}, batches=self.gradient_batches, sketch=size
        )
        g = new.look(asked)["g"]
        z = mixing.squared_distances(s.g).cpu()
        lam = mixing.scale_free(z, fed.samples, self.lam_rel) if self.lam is None else self.lam
        alpha = mixing.weights_of_newcomers(g, new.samples, s.g, fed.samples, s.heard > 0, lam)
        if not hosts:
            return mixing.mean_of_kin(alpha, s.v, s.x)
        v: Tensor = s.x.repeat(new.size, 1)
        for epoch in range(s.epoch):
            for host in shuffling.tours(alpha > 0, new.random(f"tour {epoch}")):
                v = self.tour(fed, new, v, host, alpha, epoch)
            v = self.project(v)
        return v

    def tour(
        self, fed: Federation, new: Federation, v: Tensor, host: Tensor, alpha: Tensor, epoch: int
    ) -> Tensor:
        """One visit of every newcomer's model: at a host, or (the last place) at home."""
        rounds = int((alpha > 0).sum(1).max())
        weight = rounds * alpha[torch.arange(len(host)), host]
        weight = self.limited(weight, rounds * alpha.amax(1))
        lr = self.lr if self.visit_lr is None else self.visit_lr
        work = {"lr": lr / (1 + self.decay * epoch), **self.work}
        v = v.clone()
        for where, going in ((fed, (host >= 0) & (host < fed.size)), (new, host == fed.size)):
            if going.any():
                at = host[going] if where is fed else going.nonzero()[:, 0]
                each = {"v": v[going], "weight": weight[going].to(v)}
                v[going] = where.look(where.request(visit, at, each=each, **work))["v"]
        return v

    def results(self, s: State) -> dict[str, Tensor]:
        return {"mixing": s.alpha}


@register("perm-printed")
@dataclass
class PermPrinted(PermTwoStage):
    """PERM in a single loop as printed (Deng et al., 2023): the preset that reproductions use.

    Client i minimises Phi_i(v) = sum_j alpha_i(j)*f_j(v). After `warm_up` rounds of FedAvg, for
    w, every v_i starts at w and epochs of T rounds follow. Once per epoch, or in every round
    (`refresh`), each client j sends g_j, the gradient of f_j at w; then w <- w - gamma*mean_j g_j
    and, over the simplex,
      alpha_i = argmin sum_j alpha(j)*|g_i - g_j|^2 + lam*sum_j alpha(j)^2/n_j.
    In every round each model i visits a client c, no two the same one, for K steps
    v_i <- v_i - eta*T*alpha_i(c)*g_c(v_i); see perm-two-stage for the schedules. A `packed`
    epoch knows only of visits that are wanted at its start. lam is fixed, steps are as long as
    the weights make them, and models are used as visits leave them; "perm" does better.

    A client that is lost or does not take part: the model due there comes home unchanged, and
    its last gradient stands for it; before its first it learns alone and nobody from it.
    """

    warm_up: Annotated[CountOrZero, Doc("rounds of FedAvg before there are personal models")] = 5
    schedule: Annotated[Literal["packed", "cyclic"], Doc("who visits whom when")] = "cyclic"
    step_limit: Annotated[
        Positive | Literal["none"],
        Doc("shorten a model's steps alike so that none exceeds this many times lr"),
    ] = "none"
    refresh: Annotated[Literal["epoch", "round"], Doc("how often weights are learnt")] = "epoch"
    gamma: Annotated[NotNegative | None, Doc("step of w with the mean gradient (none: lr)")] = None

    def due(self, s: State) -> Tensor:
        """Whose gradient is wanted: the last ones were taken at another w."""
        old: Tensor = (s.heard < s.epoch) | (self.refresh == "round")
        return old

    def gradients(self, fed: Federation, s: State, due: Tensor) -> Replies:
        """Whole gradients, for the sake of w; a sketch of them is kept where asked for."""
        r = fed.map(gradient_at, due, {"x": s.x}, batches=self.gradient_batches)
        s.x = s.x - (self.lr if self.gamma is None else self.gamma) * r.mean("g")
        if self.sketch is not None and r:
            r["g"] = mixing.sketch(r["g"], self.sketch)
        return r


def gradient_at(
    client: Client, x: Tensor, batches: Any, sketch: Sequence[int] = ()
) -> dict[str, Tensor]:
    """The gradient of f_i, on so many minibatches or (None) all training data; or its sketch.

    A sketch's size is a shape and not a number: runs with other sizes cannot be stacked.
    """

    def add(g: Tensor) -> Tensor:
        more: Tensor = g + client.grad(x) / batches
        return more

    g = client.full_grad(x) if batches is None else client.repeat(batches, add, x.new_zeros(1, 1))
    return {"g": mixing.sketch(g, *sketch) if sketch else g}


def visit(client: Client, v: Tensor, weight: Tensor, lr: Any, **work: Any) -> dict[str, Tensor]:
    """A model trains at its host: v <- v - lr*weight*g_c(v)."""
    return {"v": sgd(client, v, lr * weight, work)}


def weighed_gradient(client: Client, v: Tensor, weight: Tensor) -> dict[str, Tensor]:
    return {"v": weight * client.full_grad(v)}
