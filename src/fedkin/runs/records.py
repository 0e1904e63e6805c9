"""Rows of metrics.csv and clients.csv."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedkin.core.accounts import COLUMNS
from fedkin.core.federation import Federation
from fedkin.runs.evaluation import Scores

# what is evaluated: personal models on test data and on validation data (for model selection),
# the global model, and the models of local-only training
KINDS = ("personal", "validation", "global", "local")
# the same on training data, if requested: personal models and the global one
ON_TRAINING = ("train", "global_train")
CLOCK = "_seconds"  # ending of names of wall-clock times


def metrics_row(number: int, fed: Federation, scores: Mapping[str, Scores]) -> dict[str, Any]:
    """One round: accuracies where it was evaluated, totals since the start, diagnostics."""
    row: dict[str, Any] = {"round": number}
    for kind in (*KINDS, *(kind for kind in ON_TRAINING if kind in scores)):
        found = scores.get(kind)
        row[f"{kind}_accuracy"] = mean_known(found.accuracy) if found else None
        row[f"{kind}_loss"] = mean_known(found.loss) if found else None
    accuracy = known(scores["personal"].accuracy) if "personal" in scores else torch.empty(0)
    row["worst_tenth"] = worst_tenth(accuracy)
    row["best"] = float(accuracy.max()) if len(accuracy) else None
    row["better_than_alone"] = better_share(scores)
    row |= {name: fed.accounts.total(name) for name in COLUMNS}
    row["not_finite"] = len(fed.not_finite)
    for name, value in fed.records.items():
        single = not isinstance(value, Tensor) or value.dim() == 0
        if single and not name.endswith(CLOCK):
            row[name] = _or_none(float(value))
    return row


def clocks(fed: Federation) -> dict[str, float]:
    """Diagnostics of this round that differ between identical runs, such as times."""
    return {name: float(value) for name, value in fed.records.items() if name.endswith(CLOCK)}


def client_table(
    number: int, fed: Federation, scores: Mapping[str, Scores]
) -> dict[str, list[Any]]:
    """One evaluation by column: a row per client."""
    data = fed.problem.data
    table: dict[str, list[Any]] = {"round": [number] * fed.size, "client": list(data.names)}
    for kind in KINDS:
        found = scores.get(kind)
        for name in ("accuracy", "loss"):
            values = getattr(found, name).tolist() if found else [None] * fed.size
            table[f"{kind}_{name}"] = [_or_none(value) for value in values]
    table["train_samples"] = data.train.sizes.tolist()
    table["test_samples"] = data.test.sizes.tolist()
    return table | {name: fed.accounts.column(name).tolist() for name in COLUMNS}


def numbers_row(number: int, values: Tensor) -> dict[str, list[Any]]:
    """A diagnostic that is a row of numbers, by column."""
    columns = enumerate(values.flatten().tolist())
    return {"round": [number]} | {str(i): [_or_none(value)] for i, value in columns}


def _or_none(value: Any) -> Any:
    """None in place of NaN: in tables both are an empty cell."""
    return None if value != value else value


def known(values: Tensor) -> Tensor:
    """Without clients that have no test data."""
    return values[~torch.isnan(values)]


def mean_known(values: Tensor) -> float | None:
    values = known(values)
    return float(values.mean()) if len(values) else None


def worst_tenth(accuracy: Tensor) -> float | None:
    """Mean accuracy of the worst tenth of clients."""
    if not len(accuracy):
        return None
    return float(accuracy.sort().values[: max(1, len(accuracy) // 10)].mean())


def better_share(scores: Mapping[str, Scores]) -> float | None:
    """Share of clients whose personal model beats their model from local-only training."""
    if "personal" not in scores or "local" not in scores:
        return None
    gain = scores["personal"].accuracy - scores["local"].accuracy
    if bool(torch.isnan(gain).all()):
        gain = scores["local"].loss - scores["personal"].loss
    return mean_known((gain > 0).double().where(~torch.isnan(gain), torch.nan))
