"""Rows of metrics.csv and clients.csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedkin.core.accounts import COLUMNS
from fedkin.core.federation import Federation
from fedkin.core.metrics import METRICS
from fedkin.runs.evaluation import Scores
from fedkin.runs.noise import Shares, compare_scores, intervals, shares_of

# what is evaluated: personal models on test data and on validation data (for model selection),
# the global model, the models of local-only training on both, and the trivial answer
KINDS = ("personal", "validation", "global", "local", "local_validation", "trivial")
# the same on training data, if requested: personal models and the global one
ON_TRAINING = ("train", "global_train")
CLOCK = "_seconds"  # ending of names of wall-clock times


def metrics_row(
    number: int, fed: Federation, scores: Mapping[str, Scores], metrics: Sequence[str]
) -> dict[str, Any]:
    """One round: scores where it was evaluated, totals since the start, diagnostics."""
    row = {"round": number, **scores_row(scores, metrics)}
    row |= {name: fed.accounts.total(name) for name in COLUMNS}
    row["not_finite"] = len(fed.not_finite)
    for name, value in fed.records.items():
        single = not isinstance(value, Tensor) or value.dim() == 0
        if single and not name.endswith(CLOCK):
            row[name] = _or_none(float(value))
    return row


def scores_row(scores: Mapping[str, Scores], metrics: Sequence[str]) -> dict[str, Any]:
    """An evaluation in one row; empty cells where nothing was evaluated.

    A score is the mean over clients; `_pooled` is that of all their examples together. The
    first of the metrics decides who is worst, best, and better off than alone.
    """
    row: dict[str, Any] = {}
    for kind in (*KINDS, *(kind for kind in ON_TRAINING if kind in scores)):
        found = scores.get(kind)
        for name in (*metrics, "loss"):
            row[f"{kind}_{name}"] = found.mean(name) if found else None
    own = scores.get("personal")
    for name in metrics:
        row[f"personal_{name}_pooled"] = _or_none(own.pooled(name)) if own else None
    sign = 1 if METRICS[metrics[0]].higher else -1
    ordered = sign * known(own[metrics[0]]) if own else torch.empty(0)
    row["worst_tenth"] = _times(sign, worst_tenth(ordered))
    row["best"] = _times(sign, float(ordered.max())) if len(ordered) else None
    shares = than_alone(scores, metrics[0])
    for name in ("better", "same", "worse"):
        title = "same_as_alone" if name == "same" else f"{name}_than_alone"
        row[title] = getattr(shares, name) if shares else None
    return row


def clocks(fed: Federation) -> dict[str, float]:
    """Diagnostics of this round that differ between identical runs, such as times."""
    return {name: float(value) for name, value in fed.records.items() if name.endswith(CLOCK)}


def client_table(
    number: int, fed: Federation, scores: Mapping[str, Scores], metrics: Sequence[str]
) -> dict[str, list[Any]]:
    """One evaluation by column: a row per client."""
    data = fed.problem.data
    table = scores_table(number, data.names, scores, metrics)
    table["train_samples"] = data.train.sizes.tolist()
    table["test_samples"] = data.test.sizes.tolist()
    return table | {name: fed.accounts.column(name).tolist() for name in COLUMNS}


def scores_table(
    number: int, names: Sequence[str], scores: Mapping[str, Scores], metrics: Sequence[str]
) -> dict[str, list[Any]]:
    """Every client's scores by column.

    After the last round also an interval of the deciding metric, the gain over alone, and the
    noise it has to exceed.
    """
    table: dict[str, list[Any]] = {"round": [number] * len(names), "client": list(names)}
    for kind in KINDS:
        found = scores.get(kind)
        for name in (*metrics, "loss"):
            table[f"{kind}_{name}"] = _cells(found[name]) if found else [None] * len(names)
    return table | _certainty(len(names), scores, metrics[0])


def _certainty(clients: int, scores: Mapping[str, Scores], metric: str) -> dict[str, list[Any]]:
    own, table = scores.get("personal"), dict[str, list[Any]]()
    nothing: list[Any] = [None] * clients
    last = own is not None and metric in own.resampled
    ends = intervals(own, metric) if own and last else (None, None)
    for name, end in zip(("low", "high"), ends, strict=True):
        table[f"personal_{name}"] = nothing if end is None else [_or_none(v) for v in end.tolist()]
    both = compare_scores(own, scores["local"], metric) if own and "local" in scores else None
    table["gain"] = nothing if both is None else [_or_none(v) for v in both[0].tolist()]
    table["noise"] = (
        nothing if both is None or not last else [_or_none(v) for v in both[1].tolist()]
    )
    return table


def numbers_row(number: int, values: Tensor) -> dict[str, list[Any]]:
    """A diagnostic that is a row of numbers, by column."""
    columns = enumerate(values.flatten().tolist())
    return {"round": [number]} | {str(i): [_or_none(value)] for i, value in columns}


def _or_none(value: Any) -> Any:
    """None in place of NaN: in tables both are an empty cell."""
    return None if value != value else value


def _cells(values: Tensor) -> list[Any]:
    """The same of many; as a rule none of them is NaN."""
    cells = values.tolist()
    return [_or_none(cell) for cell in cells] if bool(values.isnan().any()) else cells


def known(values: Tensor) -> Tensor:
    """Without clients that have no test data."""
    return values[~torch.isnan(values)]


def worst_tenth(scores: Tensor) -> float | None:
    """Mean score of the worst tenth of clients; more is better."""
    if not len(scores):
        return None
    return float(scores.sort().values[: max(1, len(scores) // 10)].mean())


def than_alone(scores: Mapping[str, Scores], metric: str) -> Shares | None:
    """Shares of clients whose personal model is better than, as good as, or worse than the one
    they trained alone; known after the last round, when the noise is."""
    own, alone = scores.get("personal"), scores.get("local")
    if own is None or alone is None or metric not in own.resampled:
        return None
    return shares_of(*compare_scores(own, alone, metric))


def _times(sign: int, value: float | None) -> float | None:
    return None if value is None else sign * value
