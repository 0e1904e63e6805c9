"""Several methods, seeds and settings on the same clients, each method's runs in lockstep."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkin.data import ClientData
from fedkin.errors import FedkinError
from fedkin.methods.registry import form_for
from fedkin.runs import contents
from fedkin.runs.alone_once import Shared
from fedkin.runs.config import RunConfig, make_config
from fedkin.runs.folder import RunFolder
from fedkin.runs.folds import pool_folds
from fedkin.runs.groups import FOLDS
from fedkin.runs.measures import choose_metrics
from fedkin.runs.options import merge, parse
from fedkin.runs.plugins import short_name
from fedkin.runs.reading import read_json
from fedkin.runs.tasks import DONE, Errors, Task, Watch, perform
from fedkin.tensors import write_text

if TYPE_CHECKING:
    from fedkin.engines.ray.shards import Shards  # which needs Ray

PLAN = "compare.json"


Describe = Callable[[RunConfig, ClientData], str]


@dataclass(frozen=True)
class Entry:
    """One run of a comparison: its label (method and swept values), seed and config."""

    label: str
    seed: int
    config: RunConfig

    def folder(self, parent: Path) -> Path:
        return parent / self.label / f"seed-{self.seed}"

    def task(
        self, parent: Path, data: ClientData, describe: Describe, shared: Shared | None = None
    ) -> Task:
        made = make_task(self.label, self.folder(parent), self.config, data, describe)
        return replace(made, alone=shared.of(self.config, made.problem)) if shared else made


def make_task(
    label: str,
    path: Path,
    config: RunConfig,
    data: ClientData,
    describe: Describe,
    fold: int = 0,
    shards: Shards | None = None,
) -> Task:
    """A config's run in this folder."""
    return Task(
        label, path, config.make_problem(data), config.make_method(), config.settings(),
        lambda: describe(config, data), fold, shards,
    )  # fmt: skip


def rounds_of(config: RunConfig) -> int:
    """How many rounds are computed for a config: those of every fold."""
    return config.rounds * (config.data.folds or 1 if config.data.fold is None else 1)


def plan(
    method: str, base: Mapping[str, Any], seeds: Sequence[int], sweep: Mapping[str, Sequence[str]]
) -> list[Entry]:
    """A method with every combination of swept values (by option name) and every seed."""
    entries = []
    for values in product(*sweep.values()):
        chosen = dict(zip(sweep, values, strict=True))
        words = [word for key, value in chosen.items() for word in (f"--{key}", value)]
        form = form_for(method, [*sweep, *base.get("options", {})])
        over = merge(dict(base), parse(form, words))
        words = [f"{key}={short_name(value)}".replace("/", "_") for key, value in chosen.items()]
        label = "-".join([short_name(method), *words])  # it names a folder, too
        for seed in seeds:
            config = make_config(merge(over, {"method": method, "seed": seed}))
            entries.append(Entry(label, seed, config))
    return entries


def save_plan(parent: Path, entries: Sequence[Entry]) -> None:
    """Save the list of a comparison's runs, so that it can be resumed."""
    if parent.exists() and any(parent.iterdir()):
        raise FedkinError(f"{parent} already exists: choose another --out, or resume it")
    parent.mkdir(parents=True, exist_ok=True)
    write_text(parent / PLAN, json.dumps(to_rows(entries), indent=1))


def load_plan(parent: Path) -> list[Entry]:
    try:
        rows = read_json(parent / PLAN, contents.PLAN)
        return from_rows([row.model_dump() for row in rows])
    except (OSError, FedkinError) as error:
        raise FedkinError(f"{parent} is not a comparison that can be resumed: {error}") from None


def to_rows(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Entries as json can carry them."""
    return [{"label": e.label, "seed": e.seed, "config": e.config.model_dump()} for e in entries]


def from_rows(rows: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """The opposite of `to_rows`."""
    return [Entry(r["label"], r["seed"], make_config(r["config"], PLAN)) for r in rows]


def execute(
    entries: Sequence[Entry],
    parent: Path,
    describe: Describe,
    on_round: Callable[[str], None],
    stop: threading.Event,
    trackers: Sequence[str] = (),
) -> Errors:
    """Run the unfinished runs; returns the errors of runs that failed, by folder.

    `describe` writes a run's config file; see `Watch` for the rest.
    """
    errors, watch = Errors(), Watch(on_round, stop, trackers)
    todo = [entry for entry in entries if not (entry.folder(parent) / DONE).exists()]
    data: dict[str, ClientData] = {}
    shared = Shared()

    def data_of(config: RunConfig) -> ClientData:
        key = f"{config.seed} {config.data.model_dump_json()}"
        if key not in data:
            data[key] = config.make_data()
        return data[key]

    for method in dict.fromkeys(entry.config.method for entry in todo):
        plain, folded = list[Task](), list[Folded]()
        for entry in (entry for entry in todo if entry.config.method == method):
            path, config = entry.folder(parent), entry.config
            if in_folds(config):
                folded.append(fold_tasks(entry.label, path, config, data_of, describe))
            else:
                plain.append(entry.task(parent, data_of(config), describe, shared))
        errors |= perform(plain + [task for own in folded for task in own.left], watch)
        for own in folded:
            if own.finish():
                write_text(own.path / DONE, f"{own.config.rounds}\n")
        data.clear()
    return errors


# folds ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Folded:
    """A run that is made of several, one for each fold, all in its own folder."""

    path: Path
    config: RunConfig
    tasks: tuple[Task, ...]

    @property
    def left(self) -> list[Task]:
        return [task for task in self.tasks if not (task.path / DONE).exists()]

    def finish(self) -> bool:
        """Pool the folds' scores, if all are there."""
        if self.left:
            return False
        problems = [task.problem for task in self.tasks]
        metrics = choose_metrics(problems[0], self.config.metric)
        pool_folds(self.path, [task.path for task in self.tasks], problems, metrics)
        return True


def in_folds(config: RunConfig) -> bool:
    """Whether a run is made of several, one for each fold."""
    return config.data.folds is not None and config.data.fold is None


def fold_tasks(
    label: str,
    path: Path,
    config: RunConfig,
    data_of: Callable[[RunConfig], ClientData],
    describe: Describe,
    shards: Mapping[int, Shards] | None = None,
) -> Folded:
    """The runs of all folds; the folder of the whole is made if it is not there.

    With engine ray `data_of` puts a fold's shards into `shards`.
    """
    if config.engine != ("embedded" if shards is None else "ray"):
        raise FedkinError(f"engine {config.engine} computes no folds: leave engine or test out")
    if config.patience is not None:
        raise FedkinError(
            "folds end in the same round to be pooled: leave patience out, or test = folds"
        )
    configs = {
        fold: config.model_copy(update={"data": config.data.model_copy(update={"fold": fold})})
        for fold in range(1, (config.data.folds or 0) + 1)
    }
    data = {fold: data_of(own) for fold, own in configs.items()}
    tasks = tuple(
        make_task(
            label, path / FOLDS / f"fold-{fold}", own, data[fold], describe, fold,
            shards[fold] if shards is not None else None,
        )
        for fold, own in configs.items()
    )  # fmt: skip
    if not (path / "config.toml").exists():
        RunFolder.create(path, describe(config, tasks[0].problem.data)).close()
    return Folded(path, config, tasks)
