"""Run a recipe, and put what came out next to what the paper printed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin.comparison import execute
from fedkin.config import RunConfig
from fedkin.data import ClientData, checksum
from fedkin.papers.recipe import Recipe

KINDS = ("personal", "global")


@dataclass(frozen=True)
class Outcome:
    """One line of a table: per cent for every seed by kind of model, and what was printed."""

    label: str
    accuracy: dict[str, list[float]]
    printed: float | None


def reproduce(
    recipe: Recipe,
    folder: Path,
    seeds: int,
    on_round: Callable[[str], None] = lambda label: None,
    **changes: Any,
) -> list[Outcome]:
    """Run what is not yet in the folder, all seeds in lockstep; the table, also as table.csv."""
    entries = recipe.entries(seeds, **changes)
    for error in execute(entries, folder, _describe, on_round, threading.Event()).values():
        raise error
    outcomes = []
    for line in recipe.lines:
        runs = [entry.folder(folder) for entry in entries if entry.label == line.slug]
        found = {kind: [accuracy(run, kind) for run in runs] for kind in KINDS}
        outcomes.append(Outcome(line.label, found, line.printed))
    _table(outcomes, recipe.judged).to_csv(folder / "table.csv", index=False)
    return outcomes


def accuracy(run: Path, kind: str) -> float:
    """Per cent of all clients' test samples that the last models get right (NaN without models).

    Where an official test set has been dealt out whole, this is the accuracy on it.
    """
    clients = pd.read_csv(run / "clients.csv")
    last = clients[clients["round"] == clients["round"].max()]
    right = last[f"{kind}_accuracy"].astype(float) * last["test_samples"]
    return float(100 * right.sum(skipna=False) / last["test_samples"].sum())


def _table(outcomes: list[Outcome], judged: str) -> pd.DataFrame:
    rows = []
    for outcome in outcomes:
        row: dict[str, Any] = {"method": outcome.label, "printed": outcome.printed}
        for kind in KINDS:
            row[kind], row[f"{kind}_deviation"] = _spread(outcome.accuracy[kind])
        rows.append(row | {"judged": judged, "seeds": len(outcome.accuracy[judged])})
    return pd.DataFrame(rows)


def _spread(values: list[float]) -> tuple[float, float]:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return float(np.mean(values)), deviation


def shown(values: list[float]) -> str:
    """Mean and deviation over seeds, as in `91.32 ± 0.41`; a dash where there is no such model."""
    mean, deviation = _spread(values)
    return "-" if mean != mean else f"{mean:.2f} ± {deviation:.2f}"


def _describe(config: RunConfig, data: ClientData) -> str:
    full = config.model_copy(update={"data": config.data.resolved()})
    return full.to_toml({"data_sha256": checksum(data)})
