"""Rows of metrics.csv and clients.csv."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedkin.accounts import COLUMNS
from fedkin.evaluation import Scores
from fedkin.federation import Federation

# what is scored: personal models on test data and on validation data (to choose by), the
# global model, and the models clients would have alone
KINDS = ("personal", "validation", "global", "local")


def metrics_row(number: int, fed: Federation, scores: Mapping[str, Scores]) -> dict[str, Any]:
    """One round: accuracies where it was evaluated, totals since the start, diagnostics."""
    row: dict[str, Any] = {"round": number}
    for kind in KINDS:
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
        if not isinstance(value, Tensor) or value.dim() == 0:
            row[name] = float(value)
    return row


def client_rows(number: int, fed: Federation, scores: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """One evaluation: a row per client."""
    data = fed.problem.data
    columns: dict[str, list[Any]] = {"client": list(data.names)}
    for kind in KINDS:
        found = scores.get(kind)
        for name in ("accuracy", "loss"):
            values = getattr(found, name).tolist() if found else [None] * fed.size
            columns[f"{kind}_{name}"] = [None if v != v else v for v in values]
    columns["train_samples"] = data.train.sizes.tolist()
    columns["test_samples"] = data.test.sizes.tolist()
    for name in COLUMNS:
        columns[name] = fed.accounts.column(name).tolist()
    return [
        {"round": number, **{name: values[i] for name, values in columns.items()}}
        for i in range(fed.size)
    ]


def known(values: Tensor) -> Tensor:
    """Without the clients that have nothing to be tested on."""
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
    """Share of clients whose personal model beats the one they would have alone."""
    if "personal" not in scores or "local" not in scores:
        return None
    gain = scores["personal"].accuracy - scores["local"].accuracy
    if bool(torch.isnan(gain).all()):
        gain = scores["local"].loss - scores["personal"].loss
    return mean_known((gain > 0).double().where(~torch.isnan(gain), torch.nan))
