"""Whether training goes astray: losses that grow although everything stays finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from fedkin.core.problem import Problem

GROWN = 100.0
# losses of a model that knows nothing are log(classes)
ENTROPIES = ("cross-entropy", "logistic")
ON_TRAINING = {
    "train_loss": "loss of personal models on training data",
    "global_train_loss": "loss of the global model on training data",
}
# where losses on training data are not computed
HELD_OUT = {
    "personal_loss": "loss of personal models",
    "global_loss": "loss of the global model",
}


def grown_loss(metrics: Sequence[Mapping[str, Any]], problem: Problem) -> str | None:
    """A sentence if a loss is now a hundred times its lowest, and above its first, value.

    Both are no more than those of a model that knows nothing, where these are known.
    """
    columns = ON_TRAINING if metrics[-1].get("train_loss") is not None else HELD_OUT
    for column, words in columns.items():
        now = metrics[-1].get(column)
        if now is None:
            continue
        loss = problem.spec.loss
        start = next(row[column] for row in metrics if row.get(column) is not None)
        if loss.name in ENTROPIES and not loss.weights and problem.data.num_classes:
            start = min(log(problem.data.num_classes), start)
        if now <= start:  # as a rule: rounds before need no look
            continue
        known = (row.get(column) for row in metrics[:-1])
        lowest = min((start, *(value for value in known if value is not None)))
        if now > GROWN * lowest:
            return (
                f"the {words} has grown from {lowest:.3g} to {now:.3g} by round "
                f"{metrics[-1]['round']}: training is not stable"
            )
    return None
