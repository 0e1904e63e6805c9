"""What is read off a finished run: one number each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from fedkin.core.problem import Problem
from fedkin.runs.config import read_config
from fedkin.runs.groups import Records
from fedkin.runs.inputs import LABELS, Inputs
from fedkin.runs.pooled import Pooled, score_pooled
from fedkin.tensors import read_tensors

# of the last rounds this share counts as "the end", where one round alone would be noisy
END = 0.2
MOST_EXAMPLES = 10_000
GLOBAL = Path("models") / "global.safetensors"


@dataclass(frozen=True)
class Measure:
    """A number of a run (None where the run has none), its column's title and its format.

    `once`: it needs models or data, so it is read off when the run ends and written down.
    """

    name: str
    title: str
    of: Callable[[Records], float | None]
    form: str = ".2f"
    once: bool = False

    def shown(self, value: float) -> str:
        return "diverged" if value != value else f"{value:{self.form}}"


# scores ---------------------------------------------------------------------------------


def accuracy(kind: str) -> Measure:
    """Per cent of all clients' test samples that the last models get right.

    Where an official test set has been divided among the clients, this is the accuracy on it.
    """

    def of(run: Records) -> float | None:
        last = run.clients[run.clients["round"] == run.clients["round"].max()]
        right = last[f"{kind}_accuracy"].astype(float) * last["test_samples"]
        value = float(100 * right.sum(skipna=False) / last["test_samples"].sum())
        return None if value != value else value

    return Measure("accuracy", f"accuracy of {kind} models, %", of)


def last(column: str, name: str, title: str, form: str = ".4g", times: float = 1.0) -> Measure:
    """A column of metrics.csv at the last round that has it."""
    return Measure(name, title, lambda run: _at(run, column, None, times), form)


def at_round(
    column: str, number: int, name: str, title: str, form: str = ".4g", times: float = 1.0
) -> Measure:
    """A column of metrics.csv as it was after some round, or at the last evaluation before."""
    return Measure(name, title, lambda run: _at(run, column, number, times), form)


def _at(run: Records, column: str, number: int | None, times: float) -> float | None:
    if column not in run.metrics:
        return None
    rows = run.metrics[run.metrics[column].notna()]
    if number is not None:
        rows = rows[rows["round"] <= number]
    return times * float(rows[column].iloc[-1]) if len(rows) else None


def _constant(run: Records) -> float | None:
    """As `accuracy`, of clients that always answer their commonest training class."""
    data = read_config(run.path / "config.toml").make_data()
    if data.num_classes is None:
        return None
    right = 0
    for i in range(data.num_clients):
        commonest = data.train[i][1].bincount(minlength=data.num_classes).argmax()
        right += int((data.test[i][1] == commonest).sum())
    return 100 * right / int(data.test.sizes.sum())


CONSTANT = Measure(
    "constant", "accuracy of always answering a client's commonest class, %", _constant, once=True
)


# costs ----------------------------------------------------------------------------------


def _seconds(run: Records) -> float:
    """Without the first rounds, in which the engine chooses how to compute."""
    seconds = run.timing["seconds"]
    return float(seconds.iloc[len(seconds) // 5 :].mean())


def timed(column: str, title: str) -> Measure:
    """The mean of a column of timing.csv over rounds."""

    def of(run: Records) -> float | None:
        return float(run.timing[column].mean()) if column in run.timing else None

    return Measure(column, title, of, ".3g")


SECONDS = Measure("seconds", "seconds per round", _seconds, ".3g")
TOTAL_SECONDS = Measure(
    "total", "seconds in all", lambda run: float(run.timing["seconds"].sum()), ".3g"
)


def _guessing(run: Records) -> float | None:
    classes = Inputs.load(run.path).num_classes
    return None if classes is None else 100 / classes


CHANCE = Measure("chance", "accuracy by guessing, %", _guessing, ".0f")


# the global model on all clients' data together ---------------------------------------------


def pooled(name: str, title: str, form: str = ".4f") -> Measure:
    """A score of the global model on clients' pooled examples: one of POOLED."""
    return Measure(name, title, lambda run: POOLED[name](run.path), form, once=True)


@lru_cache(maxsize=64)
def _pooled_on(part: str, path: Path) -> Pooled:
    problem, model = _global_model(path)
    return score_pooled(problem, model, part, MOST_EXAMPLES)


@lru_cache(maxsize=1)
def _global_model(path: Path) -> tuple[Problem, Tensor]:
    config = read_config(path / "config.toml")
    problem = config.make_problem(config.make_data())
    named = read_tensors(path / GLOBAL)
    return problem, problem.layout.join({name: value[None] for name, value in named.items()})[0]


def score_global(path: Path, part: str) -> Pooled:
    """The global model of a run's folder on a part of all clients' data together."""
    return _pooled_on(part, path)


_on_test, _on_train = partial(_pooled_on, "test"), partial(_pooled_on, "train")

# by name: of a finished run's folder, accuracies in points, on at most so many examples
POOLED: Mapping[str, Callable[[Path], float]] = {
    "test_loss": lambda path: _on_test(path).loss,
    "test_accuracy": lambda path: 100 * _on_test(path).accuracy,
    "train_loss": lambda path: _on_train(path).loss,
    "loss_gap": lambda path: _on_test(path).loss - _on_train(path).loss,
    "accuracy_gap": lambda path: 100 * (_on_train(path).accuracy - _on_test(path).accuracy),
}


# who learns from whom ---------------------------------------------------------------------


def _weights(run: Records) -> np.ndarray[tuple[int, int], np.dtype[np.float64]] | None:
    table = run.table("mixing.csv")
    return None if table.empty else table.drop(columns="client").to_numpy(dtype=float)


def _evenness(run: Records) -> float | None:
    weights = _weights(run)
    if weights is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(weights * np.log(weights), axis=1)
    return float(entropy.mean() / np.log(len(weights)))


def _off_group(run: Records) -> float | None:
    weights, labels = _weights(run), run.table(LABELS)
    if weights is None or labels.empty:
        return None
    if "(group)" in labels:
        kind = labels["(group)"].to_numpy()
    else:
        kind = labels.drop(columns="client").to_numpy(dtype=float).argmax(1)
    return float((weights * (kind[:, None] != kind)).sum(1).mean())


EVENNESS = Measure("evenness", "entropy of the weights, 1 = all the same", _evenness, ".3f")
OFF_GROUP = Measure("off_group", "weight given to clients of other kinds", _off_group, ".4f")


# clusters ---------------------------------------------------------------------------------


def _changes(run: Records) -> float | None:
    """Share of clients that change their cluster in a round, at the end."""
    table = run.table("diagnostics/cluster.csv")
    if table.empty:
        return None
    clusters = table.drop(columns="round").to_numpy()
    moved = (clusters[1:] != clusters[:-1]).mean(1)
    return float(moved[-_end(len(moved)) :].mean()) if len(moved) else None


def _unrest(run: Records) -> float | None:
    """How much distances of group models change in a round at the end, against the beginning."""
    table = run.table("diagnostics/group_distance.csv")
    if table.empty or len(table) < 3:
        return None
    steps = table.drop(columns="round").diff().abs().mean(axis=1).iloc[1:]
    ends = _end(len(steps))
    first, final = float(steps.iloc[:ends].mean()), float(steps.iloc[-ends:].mean())
    return final / first if first else nan


def _iterations(first: bool) -> Callable[[Records], float | None]:
    def of(run: Records) -> float | None:
        if "kmeans_iterations" not in run.metrics or not len(run.metrics):
            return None
        found: pd.Series = run.metrics["kmeans_iterations"].astype(float)
        ends = _end(len(found))
        return float((found.iloc[:ends] if first else found.iloc[-ends:]).mean())

    return of


def _end(count: int) -> int:
    return max(1, round(END * count))


CHANGES = Measure("changes", "clients changing cluster per round, at the end", _changes, ".4f")
UNREST = Measure("unrest", "movement of group models, end over beginning", _unrest, ".3f")
FIRST_ITERATIONS = Measure(
    "first_iterations", "k-means iterations, first fifth", _iterations(True), ".2f"
)
LAST_ITERATIONS = Measure(
    "last_iterations", "k-means iterations, last fifth", _iterations(False), ".2f"
)
