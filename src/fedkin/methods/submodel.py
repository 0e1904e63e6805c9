"""Sub-model training with channels: every client trains a really smaller network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests, Step
from fedkin.core.variants import PLAIN, OwnClasses, Variant
from fedkin.errors import FedkinError
from fedkin.methods.base import CountOrZero, Positive, Remark, State
from fedkin.methods.fedavg import FedAvg, fine_tune, local_sgd
from fedkin.methods.registry import register
from fedkin.methods.shared.masks import (
    RATES,
    Aggregation,
    Capacity,
    Kind,
    Rates,
    Windows,
    as_numbers,
    choose,
    first_rates,
    levels,
    rates_now,
)
from fedkin.methods.shared.outputs import Output, note_output, output_of


class Change(NamedTuple):
    """What clients of one size did to x, entry by entry: their mean change, their weight."""

    mean: Tensor
    weight: Tensor
    total: float


@register("submodel", sized=("fedavg",))
@dataclass
class Submodel(FedAvg):
    """FedAvg in which client i trains ceil(r_i*C) of the C channels of every hidden layer.

    With x_i the client's part of x: y <- y - lr*g_i(y), K times from y = x_i. Then, entry by
    entry, "holders": x <- mean of y over the clients that hold the entry (HeteroFL, FedRolex),
    or "fill": x <- mean_S(y + (1 - m_i)*x). Which channels: the first ("static"), a fresh
    random set per client and round ("random"), a window that moves on by one channel a round
    ("rolling"), or its R = max C positions in a fresh random order every R rounds ("shuffled").
    Windows are at one position in all layers, or ("per-layer") at one of each layer's own.

    Rates are assigned evenly ("uniform"), again in every round ("redrawn"), or read from the
    column of the client table that `capacity` names. With `scaler` "weights" a client's part of x
    has its weights on hidden channels multiplied by C/ceil(r_i*C), so that those that are left
    make up for the others (not where a norm follows), and what it changes is divided by that.
    As HeteroFL has it (true), what layers give to hidden channels is multiplied by that, before
    any norm; steps then grow by its square, too. `own_classes` leaves a
    client's absent classes out of its loss, or ("zeroed") puts their outputs to zero; a class's
    row of the last layer is then held by the clients that have the class, which they tell the
    server. A client's personal model has its own size, of redrawn rates the first: its part of x
    in the first round's choice of channels, with the scaler's factors worked into its parameters,
    after `tune_steps` steps of size `tune_lr` (default: lr) on its own training data. So what it
    keeps is what it trains where channels are static. Lost clients are left out of the means;
    entries that nobody sent stay.
    """

    not_private: ClassVar[str] = (
        "every part of a model is divided by how many clients hold it, so that one client may "
        "weigh much in it"
    )

    refuses: ClassVar[Mapping[str, str]] = {
        "optimiser_state": "clients train other channels from round to round"
    }

    rates: Annotated[Rates, Doc("shares of hidden widths, such as 1,1/2,1/4")] = RATES
    capacity: Capacity = "uniform"
    kind: Annotated[Kind, Doc("which channels a smaller model has")] = "static"
    windows: Annotated[
        Windows, Doc("rolling and shuffled windows: one position in all layers, or each its own")
    ] = "shared"
    aggregation: Annotated[Aggregation, Doc("who counts for an entry: holders, or all")] = "holders"
    scaler: Annotated[
        bool | Literal["weights"],
        Doc("make up for cut channels: weights on those left, or (true) all outputs, times 1/rate"),
    ] = "weights"
    own_classes: Annotated[
        OwnClasses, Doc("leave a client's absent classes out of its loss; zeroed: outputs to zero")
    ] = False
    output: Output = "last"
    tune_steps: Annotated[CountOrZero, Doc("steps by which a client fine-tunes what it keeps")] = (
        100
    )
    tune_lr: Annotated[Positive | None, Doc("size of a step of fine-tuning (none: lr)")] = None

    def __post_init__(self) -> None:
        self.rates = as_numbers(self.rates)

    def init(self, fed: Federation) -> State:
        rates = first_rates(fed, self.rates, self.capacity)
        if not fed.problem.widths.sizes and rates.min() < 1:
            raise FedkinError(
                "the model has no hidden layers to cut: train one that has, such as mlp or cnn, or "
                "train without sub-models"
            )
        x = fed.initial_model()
        return State(x=x, rates=rates, trained=torch.zeros_like(x, dtype=torch.bool))

    def remarks(self, fed: Federation) -> tuple[Remark, ...]:
        widths, module = fed.problem.widths, fed.problem.spec.module
        normed = widths.normed(module) if self.scaler is True else ()
        if not normed:
            return ()
        which = "every hidden layer" if len(normed) == len(widths.names) else ", ".join(normed)
        said = (
            f"the scaler has no effect on {which}: a norm follows and undoes any scale "
            "(HeteroFL and FedRolex put it before the norm too)"
        )
        return (Remark(said),)

    def round(self, fed: Federation, s: State) -> None:
        rates = rates_now(fed, s.rates, self.rates, self.capacity)
        self.average_parts(fed, s, rates, fed.sample())
        note_output(fed, s, self.output)

    def average_parts(
        self, fed: Federation, s: State, rates: Tensor, who: Tensor, **form: Any
    ) -> None:
        """Clients train their parts of x, and x moves along their mean."""
        changes = [self.train(fed, s, rate, at, **form) for rate, at in levels(rates, who)]
        total = sum(change.total for change in changes) or 1.0
        held = torch.stack([change.weight for change in changes]).sum(0)
        s.trained = s.trained | (held > 0)
        fed.record(
            rate=float(self.had(fed, rates[who]).mean()), held=float(held.mean()) / total,
            untrained=float((~s.trained).double().mean()),
        )  # fmt: skip
        counted = total if self.aggregation == "fill" else torch.where(held > 0, held, 1)
        dx = torch.stack([c.mean * (c.weight / counted) for c in changes]).sum(0)
        self.advance(s, dx, any(change.total for change in changes))

    def had(self, fed: Federation, rates: Tensor) -> Tensor:
        """The share of channels that models of these rates really have: widths are whole."""
        widths, shares = fed.problem.widths, torch.ones_like(rates)
        for rate in rates.unique().tolist():
            shares[rates == rate] = sum(widths.kept(rate)) / (sum(widths.sizes) or 1)
        return shares

    def train(
        self, fed: Federation, s: State, rate: float, at: Tensor, step: Step = local_sgd,
        form: Variant = PLAIN, **hyper: Any,
    ) -> Change:  # fmt: skip
        """The clients `at`, all of one size, train their part of x."""
        index, more = self.part(fed, rate, fed.round - 1, at), self.enlarged(fed, rate)
        weights, hyper = self.weights(fed), {**hyper, "lr": self.lr, **self.work}
        variant = Variant(rate, self.scaler is True, self.own_classes, form.held_out)
        if self.own_classes:
            step = sgd_and_classes
        if len(index) > 1:
            r = fed.map(step, at, each={"x": s.x[index] * more}, variant=variant, **hyper)
            w = r.arrived.to(s.x) * (1 if weights is None else weights[at].to(s.x))
            return scattered(s.x, index, r["dx"] / more, w, self.held(fed, index, r))
        shared = {"x": s.x[index[0]] * more}
        mean = fed.mean(step, at, shared=shared, weights=weights, variant=variant, **hyper)
        share = self.held(fed, index, mean)[0]
        return placed(s.x, index[0], mean["dx"] / more, mean.weight, share)

    def enlarged(self, fed: Federation, rate: float) -> Tensor:
        """By what a client's part of x is multiplied before it is given to it: [k]."""
        factors = fed.problem.missing_inputs(rate)
        return factors if self.scaler == "weights" else torch.ones_like(factors)

    def held(self, fed: Federation, index: Tensor, reply: Mapping[str, Tensor]) -> Tensor:
        """Which of its entries a client holds (or what share of clients does): all, but of the
        rows of classes only those that it has, where the loss is of own classes."""
        if "classes" not in reply:
            return torch.ones(1, 1, dtype=fed.problem.dtype, device=index.device)
        has = F.pad(torch.atleast_2d(reply["classes"]), (1, 0), value=1.0)
        return has.gather(1, fed.problem.served[index].expand(len(has), -1))

    @property
    def tuning(self) -> dict[str, Any]:
        """Steps at home, as `fine_tune` takes them."""
        lr = self.lr if self.tune_lr is None else self.tune_lr
        return {"lr": lr, "local_steps": self.tune_steps, **self.moves}

    def personal(self, fed: Federation, s: State) -> Requests:
        return self.at_home(fed, s, fine_tune, "x", **self.tuning)

    def global_model(self, s: State) -> Tensor | None:
        return output_of(s)

    def results(self, s: State) -> dict[str, Tensor]:
        return {"rates": s.rates[:, None]}

    def part(self, fed: Federation, rate: float, turn: int, at: Tensor) -> Tensor:
        """Where the clients' parts lie in x: a row for each, or one row for all."""
        widths = fed.problem.widths
        chosen = choose(self.kind, widths, rate, fed.seed, turn, at, self.windows)
        return widths.index(chosen).to(fed.problem.device)

    def kept(self, fed: Federation, x: Tensor, rate: float, at: Tensor) -> Tensor:
        """The parts of x that clients keep, computing as in training: a row for each or for all."""
        rows: Tensor = x[self.part(fed, rate, 0, at)] * self.enlarged(fed, rate)
        scale = fed.problem.variant(Variant(rate, self.scaler is True)).scale
        return rows if scale is None else rows * scale

    def at_home(self, fed: Federation, s: State, step: Step, name: str, **hyper: Any) -> Requests:
        """A request to every client with its own part of x, the one it keeps, under this name."""
        requests = []
        for rate, at in levels(s.rates, torch.arange(fed.size)):
            given = one_or_each(name, self.kept(fed, output_of(s), rate, at))
            requests.append(fed.request(step, at, variant=Variant(rate), **given, **hyper))
        return tuple(requests)


@register("submodel-local", sized=("fedavg-local",))
@dataclass
class SubmodelLocal(Submodel):
    """Localized FedAvg with sub-models: every client fine-tunes its own part of x.

    The same as "submodel", under the name that goes with fedavg-local: the copy after
    `tune_steps` steps of size `tune_lr` (default: lr) on the client's training data is its
    personal model, of its own size.
    """


def one_or_each(name: str, rows: Tensor) -> dict[str, dict[str, Tensor]]:
    """Parts of x as a request takes them: one for all, or one for each."""
    return {"shared": {name: rows[0]}} if len(rows) == 1 else {"each": {name: rows}}


def placed(x: Tensor, index: Tensor, mean: Tensor, weight: float, share: Tensor) -> Change:
    """The mean change of clients that hold the same entries, or of a share of them."""
    change, held = torch.zeros_like(x), torch.zeros_like(x)
    change[index], held[index] = mean.to(x) / torch.where(share > 0, share, 1), weight * share
    return Change(change, held, weight)


def scattered(x: Tensor, index: Tensor, rows: Tensor, w: Tensor, holds: Tensor) -> Change:
    """Changes of clients that hold different entries, each of weight w."""
    each = (w[:, None] * holds).expand(index.shape)
    held = torch.zeros_like(x).index_add_(0, index.flatten(), each.flatten())
    total = torch.zeros_like(x).index_add_(0, index.flatten(), (each * rows).flatten())
    return Change(total / torch.where(held > 0, held, 1), held, float(w.sum()))


def sgd_and_classes(client: Client, x: Tensor, lr: Any, **work: Any) -> dict[str, Tensor]:
    return {**local_sgd(client, x, lr, **work), "classes": client.classes}
