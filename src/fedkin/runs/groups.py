"""Finished runs on disk, and which of them are repeats of each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin.errors import FedkinError
from fedkin.runs.contents import StoredConfig
from fedkin.runs.early import went_back
from fedkin.runs.inputs import LABELS
from fedkin.runs.measures import ACCURACY, LOSS, Measure, read_measures
from fedkin.runs.names import is_number
from fedkin.runs.plugins import short_name
from fedkin.runs.privacy_file import ended_by_budget
from fedkin.runs.reading import read_table, read_text
from fedkin.runs.validation import validated
from fedkin.toml import read_toml

NEWCOMERS = "newcomers"  # the folder in a run's for models of clients that came later
MOST_SAMPLES = 10**15
FOLDS = "folds"  # the folder in a run's for the runs that it is pooled from
# settings that may differ between repeats
NOT_COMPARED = ("seed", "data.data_dir")


class Records:
    """The tables of a run folder, each read on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "config.toml").is_file():
            raise FedkinError(f"{path} is not a run folder: it has no config.toml")
        found = read_stored_config(path)
        self.made_with = found.made_with
        self.settings: dict[str, Any] = found.model_dump(exclude_unset=True, exclude={"made_with"})

    @property
    def method(self) -> str:
        return short_name(str(self.settings["method"]))

    @property
    def seed(self) -> int:
        return int(self.settings.get("seed", 0))

    def table(self, name: str) -> pd.DataFrame:
        """A csv file of the folder; empty when there is none."""
        return read_table(self.path / name)

    @property
    def labels(self) -> pd.DataFrame:
        """Training samples of every client, of each class; empty when they are not known."""
        table = read_table(self.path / LABELS, ("client",))
        counts = table.drop(columns="client", errors="ignore").to_numpy(np.float64)
        if not (np.isfinite(counts) & (counts >= 0) & (counts <= MOST_SAMPLES)).all():
            raise FedkinError(f"{self.path / LABELS} is damaged: it needs counts of samples")
        return table

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row per round."""
        return read_table(self.path / "metrics.csv", ("round",), by_round=True)

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per client and evaluation."""
        table = read_table(self.path / "clients.csv", ("round", "client"))
        return _whole_evaluations(table, self.path / "clients.csv")

    @cached_property
    def timing(self) -> pd.DataFrame:
        """Seconds of every round."""
        return read_table(self.path / "timing.csv", ("round", "seconds"), by_round=True)

    @cached_property
    def measures(self) -> list[Measure]:
        """What the run was measured by, the deciding measure first."""
        found = read_measures(self.path)
        if not found:  # of an older version: accuracy, or the loss where nothing can be counted
            counted = "personal_accuracy" in self.metrics
            counted = counted and bool(self.metrics["personal_accuracy"].notna().any())
            found = [ACCURACY if counted else LOSS]
        return found

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return int(self.metrics["round"].iloc[-1]) if len(self.metrics) else 0

    @property
    def _ended_early(self) -> bool:
        return went_back(self.path) or ended_by_budget(self.path)

    @property
    def finished(self) -> bool:
        return self._ended_early or self.rounds >= int(self.settings.get("rounds", self.rounds))

    @property
    def evaluated(self) -> bool:
        known = self.metrics.get("personal_loss")
        return known is not None and bool(known.notna().any())

    @cached_property
    def data(self) -> str | None:
        """Equal for two runs with the same clients: their checksum, or their contents."""
        if "data_sha256" in self.made_with:
            return self.made_with["data_sha256"]
        labels = self.path / LABELS
        return read_text(labels) if labels.is_file() else None


def read_stored_config(folder: Path) -> StoredConfig:
    """A run folder's config.toml as far as reports go by it."""
    path = folder / "config.toml"
    values = read_toml(path)
    if "method" not in values:
        raise FedkinError(f"{path} names no method")
    return validated(StoredConfig, values, str(path))


def _whole_evaluations(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Rows of clients without a last evaluation that is being written, or that a kill cut short."""
    if table.empty:
        return table
    names = table["client"].to_numpy()
    _, starts = np.unique(table["round"].to_numpy(), return_index=True)
    first, *others = np.split(names, starts[1:])
    for place, own in enumerate(others):
        if place == len(others) - 1 and len(own) < len(first):
            return table.iloc[: starts[-1]]
        if len(own) != len(first) or bool((own != first).any()):
            number = int(table["round"].iloc[starts[place + 1]])
            raise FedkinError(f"{path} is damaged: round {number} has other clients than the first")
    return table


@dataclass(frozen=True)
class Group:
    """Repeats: runs of one method with the same settings, each with its own seed.

    `unfinished` counts those that were stopped or diverged, whose results do not count.
    """

    label: str
    runs: tuple[Records, ...]
    unfinished: int = 0

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def problem(self) -> str:
        """Equal for two groups with the same task: how their data were made."""
        data = flattened(self.runs[0].settings.get("data", {}), "data.")
        return str(sorted((k, str(v)) for k, v in data.items() if k not in NOT_COMPARED))

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]


def find_runs(paths: Iterable[Path]) -> list[Records]:
    """The runs in some folders: run folders, or folders that hold them (a comparison)."""
    found: dict[Path, Records] = {}
    for path in paths:
        if not path.is_dir():
            raise FedkinError(f"there is no folder {path}")
        own = path / "config.toml"
        inside = [p for p in path.rglob("config.toml") if is_run(p, path)]
        for config in [own] if own.is_file() else sorted(inside, key=_natural):
            found.setdefault(config.parent.resolve(), Records(config.parent))
    if not any(run.evaluated for run in found.values()):
        places = ", ".join(str(path) for path in paths)
        raise FedkinError(f"there is no run with results in {places}")
    return list(found.values())


def is_run(config: Path, folder: Path) -> bool:
    """Whether a config below a folder is a run's of its own, and not a part of another run."""
    parts = config.relative_to(folder).parts
    return NEWCOMERS not in parts and not (
        len(parts) >= 3 and parts[-3] == FOLDS and (config.parents[2] / "config.toml").is_file()
    )


def group(runs: Sequence[Records]) -> tuple[list[Group], list[str]]:
    """Runs that differ only in their seed together, in the order found; and notes on them.

    A group is labelled by its method and by the settings that distinguish it from others of
    that method. A second run with the same seed is not a repeat and is left out.
    """
    flat = [flattened(run.settings) for run in runs]
    notes, members = [], dict[tuple[tuple[str, str], ...], dict[int, Records]]()
    for run, settings in zip(runs, flat, strict=True):
        key = tuple(sorted((k, str(v)) for k, v in settings.items() if k not in NOT_COMPARED))
        repeats = members.setdefault(key, {})
        if run.seed in repeats:
            notes.append(f"{run.path} repeats {repeats[run.seed].path} and is not counted")
        repeats.setdefault(run.seed, run)
    groups = []
    for key, repeats in members.items():
        own = dict(key)
        rivals = [dict(other) for other in members if dict(other)["method"] == own["method"]]
        name = " ".join([short_name(own["method"]), *_differences(own, rivals)])
        done = [run for run in repeats.values() if run.evaluated and run.finished]
        left = len(repeats) - len(done)
        kept = done or [run for run in repeats.values() if run.evaluated]
        if left:
            what = "left out" if done or not kept else "shown as far as they got"
            notes.append(f"{name}: {left} of {len(repeats)} runs are unfinished and {what}")
        if kept:
            kept.sort(key=lambda run: run.seed)
            groups.append(Group(name, tuple(kept), left))
    return groups, notes


def shared_settings(groups: Sequence[Group]) -> dict[str, str]:
    """Settings, by dotted name, that all groups have in common."""
    flat = [flattened(group.runs[0].settings) for group in groups]
    counts = Counter((k, str(v)) for settings in flat for k, v in settings.items())
    return {k: v for (k, v), count in counts.items() if count == len(flat) and k != "seed"}


def _differences(own: Mapping[str, str], rivals: Sequence[Mapping[str, str]]) -> list[str]:
    keys = [k for k in own if any(other.get(k) != own[k] for other in rivals)]
    return [f"{k.removeprefix('options.')}={own[k]}" for k in keys]


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings of nested tables by dotted name."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        inner = isinstance(value, dict)
        found |= flattened(value, f"{key}.") if inner else {f"{prefix}{key}": value}
    return found


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts seed-2 before seed-10."""
    parts = str(path).replace("/", "-").split("-")
    return [(int(part), "") if is_number(part) else (-1, part) for part in parts]
