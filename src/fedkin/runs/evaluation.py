"""Evaluation: every client's own model on its own held-out data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests, parts
from fedkin.core.kernels.statistics import settled, spread
from fedkin.core.problem import Problem
from fedkin.core.steps import find_step, offer_steps, step_name
from fedkin.methods.base import use

offer_steps(__name__)


@dataclass(frozen=True)
class Scores:
    """Per client: mean loss, accuracy (NaN without test data, or for regression), examples."""

    loss: Tensor
    accuracy: Tensor
    examples: Tensor

    def overall(self, values: Tensor) -> float:
        """Mean over all examples of all clients."""
        share = self.examples / self.examples.sum()
        return float(torch.where(self.examples > 0, values * share, 0).sum())


def judge(client: Client, make: str, part: str, **arguments: Any) -> dict[str, Tensor]:
    """The step of evaluation: get the model by the step `make`, score it on a part of the data."""
    model = find_step(make)(client, **arguments)["model"]
    return client.evaluate(model, part)


def score(fed: Federation, asked: Requests, part: str = "test") -> Scores:
    """Scores of the model that a request gives each client; nothing is counted or kept."""
    rows = []
    for request in parts(asked):
        hyper = {**request.hyper, "make": step_name(request.step), "part": part}
        sums = fed.look(replace(request, step=judge, hyper=hyper))
        rows.append(torch.cat([sums[name] for name in ("loss", "correct", "examples")], 1))
    in_order = torch.cat([request.at for request in parts(asked)]).argsort()
    loss, correct, count = torch.cat(rows)[in_order.to(rows[0].device)].unbind(1)
    counted = fed.problem.data.num_classes is not None
    accuracy = correct / count if counted else torch.full_like(count, torch.nan)
    return Scores(loss / count, accuracy, count)


def score_model(fed: Federation, model: Tensor, part: str = "test") -> Scores:
    """Scores of one model at all clients."""
    return score(fed, fed.request(use, shared={"model": model}), part)


@dataclass(frozen=True)
class Pooled:
    """Mean loss and accuracy over examples of all clients together."""

    loss: float
    accuracy: float


def score_pooled(
    problem: Problem, model: Tensor, part: str = "test", at_most: int = 10_000
) -> Pooled:
    """One model for all, on all clients' examples (or some spread evenly over them) as one set.

    Batch norms go by the statistics of training examples of all clients.
    """
    examples, train = problem.part(part), problem.train.x
    if problem.batch_norm:
        module = settled(problem.spec, model, train[spread(len(train), 1024)])
    else:
        module = problem.module(model)
    chosen, sums = spread(len(examples.y), at_most), torch.zeros(2, dtype=torch.float64)
    for rows in chosen.split(500):
        with torch.no_grad():
            outputs = module(examples.x[rows])
        targets, loss = examples.y[rows], problem.spec.loss
        sums[0] += loss.value(outputs, targets).sum().cpu()
        sums[1] += (loss.predict(outputs) == targets).sum().cpu()
    mean_loss, accuracy = (sums / len(chosen)).tolist()
    return Pooled(mean_loss, accuracy if problem.data.num_classes is not None else torch.nan)
