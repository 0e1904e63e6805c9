"""Evaluation: every client's own model on its own held-out data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests, parts
from fedkin.core.metrics import METRICS, Answers, Metric, get_metric
from fedkin.core.steps import find_step, offer_steps, step_name
from fedkin.errors import FedkinError
from fedkin.methods.base import use
from fedkin.runs.norms import by_norm
from fedkin.runs.resampling import drawn, resampled
from fedkin.runs.together import means_of

offer_steps(__name__)

# a server may not make a site draw more
MOST_RESAMPLES = 1000


@dataclass(frozen=True)
class Scores:
    """Per client: mean loss, examples, and the sums behind each metric.

    `rarest` is the number of classes times the examples of the rarest one. `resampled` has
    each metric's value on examples drawn anew from the client's own: [N, times].

    Of one fold of several, `drawn` has the sums behind those values, [N, times, k], and
    `classes` the examples of each class, so that folds can be added up.

    Where single clients' scores are not shown, `together` has their means by name, and the
    values of all examples as one under `... pooled`.
    """

    loss: Tensor
    examples: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)
    rarest: Tensor | None = None
    resampled: dict[str, Tensor] = field(default_factory=dict)
    drawn: dict[str, Tensor] = field(default_factory=dict)
    classes: Tensor | None = None
    together: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, metric: str) -> Tensor:
        """A metric (or the loss) of every client; NaN where it is not known."""
        if metric == "loss":
            return self.loss
        if metric not in self.sums:
            return torch.full_like(self.loss, torch.nan)
        return METRICS[metric].value(self.sums[metric])

    @property
    def accuracy(self) -> Tensor:
        return self["accuracy"]

    @property
    def metrics(self) -> list[str]:
        """The metrics that are known, the deciding one first."""
        return list(self.sums)

    def mean(self, metric: str) -> float | None:
        """The mean over the clients whose value is known."""
        if self.together:
            value = self.together[metric]
            return value if value == value else None
        values = self[metric]
        values = values[~values.isnan()]
        return float(values.mean()) if len(values) else None

    def pooled(self, metric: str) -> float:
        """A metric of all clients' examples together."""
        if self.together:
            return self.together[f"{metric} pooled"]
        if metric not in self.sums:
            return torch.nan
        return float(METRICS[metric].value(self.sums[metric].sum(0)))

    def certain(self, metric: str) -> Tensor:
        """How many examples a client's value rests on: of the rarest class where that counts."""
        if METRICS[metric].per_class and self.rarest is not None:
            return self.rarest
        return self.examples

    def overall(self, values: Tensor) -> float:
        """Mean over all examples of all clients."""
        share = self.examples / self.examples.sum()
        return float(torch.where(self.examples > 0, values * share, 0).sum())


# at the clients -------------------------------------------------------------------------


def judge(
    client: Client,
    make: str,
    part: str,
    metrics: str = "",
    resamples: int = 0,
    place: Tensor | None = None,
    fold: Tensor | None = None,
    norm_statistics: Tensor | None = None,
    **arguments: Any,
) -> dict[str, Tensor]:
    """The step of evaluation: get the model by the step `make`, score it on a part of the data.

    `metrics` are names, one on each line. `place` is a number of the client's own, the same
    in all requests, for drawing the same resamples of its examples every time. `fold`, from 1,
    tells that these are some of several folds' examples, whose sums are added up.
    """
    model = find_step(make)(client, **arguments)["model"]
    chosen = [get_metric(name) for name in metrics.splitlines()]
    whole = bool(resamples) or any(metric.whole for metric in chosen)
    answers = client.answers(model, part, whole, norm_statistics)
    return tally(client, answers, chosen, resamples, place, fold)


def trivial(
    client: Client,
    part: str,
    metrics: str = "",
    resamples: int = 0,
    place: Tensor | None = None,
    fold: Tensor | None = None,
) -> dict[str, Tensor]:
    """As `judge`, for the answer that needs no model: the client's commonest class in training
    (as probabilities: the classes' shares), or the mean of its targets."""
    outputs = constant_answer(client)
    chosen = [get_metric(name) for name in metrics.splitlines()]

    def outputs_of(x: Tensor) -> Tensor:
        return outputs[:, None].expand(len(outputs), x.shape[1], *outputs.shape[1:])

    answers = client.judged(outputs_of, part, whole=True)
    return tally(client, answers, chosen, resamples, place, fold)


def constant_answer(client: Client) -> Tensor:
    """The best outputs [B, c] that know a client's training targets and nothing of its inputs."""
    classes, loss = client.problem.data.num_classes, client.problem.spec.loss
    total: Tensor | float = 0.0
    for batch, mask in client.stretches():
        if classes is None:
            y = batch.y.reshape(*mask.shape, -1).double()
        else:
            y = torch.nn.functional.one_hot(batch.y.long(), classes).double()
        total = total + (mask.double()[..., None] * y).sum(1)
    assert isinstance(total, Tensor)
    if classes is None:
        return total / client.n
    shares = (total + 1 / classes) / (client.n + 1)  # never quite 0
    if loss.binary:
        return (shares[:, 1:] / shares[:, :1]).log()
    return shares.log()


def tally(
    client: Client,
    answers: Iterable[Answers],
    metrics: Sequence[Metric],
    resamples: int,
    place: Tensor | None,
    fold: Tensor | None = None,
) -> dict[str, Tensor]:
    """Sums of answers for each metric, and the metrics' values on resampled examples."""
    if not 0 <= resamples <= MOST_RESAMPLES:
        raise FedkinError(f"resamples must be 0 to {MOST_RESAMPLES}, not {resamples}")
    found: dict[str, Tensor] = {}
    for a in answers:
        flat, targets = a.outputs.flatten(0, 1), a.targets.flatten(0, 1)
        losses = a.loss.value(flat, targets).view(a.mask.shape)
        part = {
            "loss": torch.where(a.mask > 0, losses, 0).sum(1, keepdim=True, dtype=torch.float64),
            "examples": a.mask.sum(1, keepdim=True, dtype=torch.float64),
        }
        if a.num_classes is not None and any(metric.per_class for metric in metrics):
            part["classes"] = (a.one_hot(a.targets) * a.mask.double()[..., None]).sum(1)
        once = a.mask.double()[:, None]
        part |= {f"sums {m.name}": m.sums(a, once)[:, 0] for m in metrics}
        found = {name: found[name] + v if name in found else v for name, v in part.items()}
        if resamples and place is not None:
            found |= (
                drawn(a, metrics, resamples, place, fold)
                if fold is not None
                else resampled(a, metrics, resamples, place)
            )
    return found or _nothing(client)


def _nothing(client: Client) -> dict[str, Tensor]:
    """The answer of clients without any examples."""
    zero = torch.zeros(len(client), 1, dtype=torch.float64, device=client.problem.device)
    return {"loss": zero, "examples": zero}


# at the server --------------------------------------------------------------------------


def score(
    fed: Federation,
    asked: Requests,
    part: str = "test",
    metrics: Sequence[str] = (),
    resamples: int = 0,
    fold: int = 0,
) -> Scores:
    """Scores of the model that a request gives each client; nothing is counted or kept."""
    own = [
        replace(by_norm(fed, r), step=judge, hyper={**r.hyper, "make": step_name(r.step)})
        for r in parts(asked)
    ]
    return _gathered(fed, tuple(own), part, metrics, resamples, fold)


def score_model(
    fed: Federation, model: Tensor, part: str = "test", metrics: Sequence[str] = ()
) -> Scores:
    """Scores of one model at all clients."""
    return score(fed, fed.request(use, shared={"model": model}), part, metrics)


def score_trivial(fed: Federation, metrics: Sequence[str], part: str = "test") -> Scores:
    """Scores of every client's trivial answer: its commonest class, its mean target."""
    return _gathered(fed, (fed.request(trivial),), part, metrics, 0)


def _gathered(
    fed: Federation,
    asked: Requests,
    part: str,
    metrics: Sequence[str],
    resamples: int,
    fold: int = 0,
) -> Scores:
    if not metrics:
        metrics = ("accuracy",) if fed.problem.data.num_classes is not None else ("rmse",)
    if fed.sums_only:
        named = [replace(r, hyper={**r.hyper, "part": part}) for r in parts(asked)]
        return Scores(
            torch.full((fed.size,), torch.nan), torch.zeros(fed.size),
            together=means_of(fed, tuple(named), metrics),
        )  # fmt: skip
    answers, order = [], torch.cat([request.at for request in parts(asked)]).argsort()
    for request in parts(asked):
        hyper = {"part": part, "metrics": "\n".join(metrics), "resamples": resamples}
        each = {**request.each, **({"place": request.at[:, None]} if resamples else {})}
        if resamples and fold:  # a row each, as folds may be computed together
            each["fold"] = torch.full_like(request.at[:, None], fold)
        answers.append(fed.look(replace(request, each=each, hyper={**request.hyper, **hyper})))
    found: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for answer in answers for name in answer):
        width = next(answer[name].shape[1] for answer in answers if name in answer)
        rows = [
            answer[name] if name in answer else torch.zeros(len(answer.at), width)
            for answer in answers
        ]
        found[name] = torch.cat([row.cpu() for row in rows])[order]
    nothing = torch.zeros(len(order), 1, dtype=torch.float64)
    loss, count = found.get("loss", nothing)[:, 0], found.get("examples", nothing)[:, 0]
    classes = found.get("classes")
    return Scores(
        loss / count,
        count,
        {name: found[f"sums {name}"] for name in metrics if f"sums {name}" in found},
        None if classes is None else rarest(classes),
        {
            name: torch.where(found[f"known {name}"] > 0, found[f"resampled {name}"], torch.nan)
            for name in metrics
            if f"known {name}" in found
        },
        {
            name: found[f"drawn {name}"].view(len(order), resamples, -1)
            for name in metrics
            if f"drawn {name}" in found
        },
        classes,
    )


def rarest(classes: Tensor) -> Tensor:
    """Number of classes that occur times examples of the rarest of them; [N]."""
    there = classes > 0
    fewest = torch.where(there, classes, torch.inf).amin(1)
    return torch.where(there.any(1), fewest * there.sum(1), 0)
