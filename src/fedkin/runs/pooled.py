"""One model for all, judged on all clients' examples as one set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.core.kernels.spec import outputs_of
from fedkin.core.kernels.statistics import spread
from fedkin.core.problem import Problem


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
    if problem.spec.statistics.slots:
        model = torch.cat([model, problem.initial_home[0]])
        known = problem.settler.rows(model[None], [train[spread(len(train), 1024)]])[0]
        model = torch.cat([model, known])
    module = problem.module(model)
    chosen, sums = spread(len(examples.y), at_most), torch.zeros(2, dtype=torch.float64)
    for rows in chosen.split(500):
        with torch.no_grad():
            outputs = outputs_of(module, examples.x[rows])
        targets, loss = examples.y[rows], problem.spec.loss
        sums[0] += loss.value(outputs, targets).sum().cpu()
        sums[1] += (loss.predict(outputs) == targets).sum().cpu()
    mean_loss, accuracy = (sums / len(chosen)).tolist()
    return Pooled(mean_loss, accuracy if problem.data.num_classes is not None else torch.nan)
