"""Several methods, seeds and settings on the same clients, each method's runs in lockstep."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedkin.core.problem import Problem
from fedkin.data import ClientData
from fedkin.engines.lockstep import Lockstep, can_merge
from fedkin.errors import FedkinError
from fedkin.methods import Method
from fedkin.methods.registry import form_for
from fedkin.runs import contents
from fedkin.runs.config import RunConfig, make_config
from fedkin.runs.folder import RunFolder
from fedkin.runs.folds import pool_folds
from fedkin.runs.groups import FOLDS
from fedkin.runs.measures import choose_metrics
from fedkin.runs.options import merge, parse
from fedkin.runs.plugins import short_name
from fedkin.runs.reading import read_json
from fedkin.runs.settings import Settings
from fedkin.runs.trackers import make_tracker
from fedkin.runs.training import Trainer
from fedkin.tensors import write_text

PLAN, DONE = "compare.json", "done"
# how many numbers of stacked models one lockstep may hold: 1 GB in single precision
MOST_NUMBERS = 250_000_000


@dataclass(frozen=True)
class Task:
    """One run to be made: where, its problem and method, and the text of its config file."""

    label: str
    path: Path
    problem: Problem
    method: Method
    settings: Settings
    text: Callable[[], str]
    fold: int = 0


Describe = Callable[[RunConfig, ClientData], str]


@dataclass(frozen=True)
class Entry:
    """One run of a comparison: its label (method and swept values), seed and config."""

    label: str
    seed: int
    config: RunConfig

    def folder(self, parent: Path) -> Path:
        return parent / self.label / f"seed-{self.seed}"

    def task(self, parent: Path, data: ClientData, describe: Describe) -> Task:
        return make_task(self.label, self.folder(parent), self.config, data, describe)


def make_task(
    label: str, path: Path, config: RunConfig, data: ClientData, describe: Describe, fold: int = 0
) -> Task:
    """A config's run in this folder."""
    return Task(
        label, path, config.make_problem(data), config.make_method(), config.settings(),
        lambda: describe(config, data), fold,
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


@dataclass(frozen=True)
class Watch:
    """Who is told of runs, and how they are stopped.

    `on_round` is called with the run's label after each of its rounds. When `stop` is set every
    run finishes its round and saves. `trackers` are names.
    """

    on_round: Callable[[str], None]
    stop: threading.Event
    trackers: Sequence[str] = ()


Errors = dict[str, BaseException]


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
                plain.append(entry.task(parent, data_of(config), describe))
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
) -> Folded:
    """The runs of all folds; the folder of the whole is made if it is not there."""
    if config.engine != "embedded":
        raise FedkinError(f"engine {config.engine} computes no folds: leave engine or test out")
    if config.patience is not None:
        raise FedkinError(
            "folds end in the same round to be pooled: leave patience out, or test = folds"
        )
    configs = {
        fold: config.model_copy(update={"data": config.data.model_copy(update={"fold": fold})})
        for fold in range(1, (config.data.folds or 0) + 1)
    }
    tasks = tuple(
        make_task(label, path / FOLDS / f"fold-{fold}", own, data_of(own), describe, fold)
        for fold, own in configs.items()
    )
    if not (path / "config.toml").exists():
        RunFolder.create(path, describe(config, tasks[0].problem.data)).close()
    return Folded(path, config, tasks)


def perform(tasks: Sequence[Task], watch: Watch) -> Errors:
    """Run tasks of one method, as many as can be at once; errors by folder."""
    errors = Errors()
    for batch in batches(tasks):
        if watch.stop.is_set():
            break
        errors |= _together(batch, watch)
    return errors


def batches(tasks: Sequence[Task]) -> list[list[Task]]:
    """Batches of runs to compute as one: same shape, and no more than fit in memory.

    A run with a memory limit is computed alone: only then can its state go to files.
    """
    found: list[list[Task]] = []
    for task in tasks:
        numbers = task.problem.num_clients * task.problem.size
        for batch in found:
            alike = can_merge([batch[0].problem, task.problem]) and task.settings.memory is None
            if alike and (len(batch) + 1) * numbers <= MOST_NUMBERS:
                batch.append(task)
                break
        else:
            found.append([task])
    return found


def _together(batch: Sequence[Task], watch: Watch) -> Errors:
    settings = batch[0].settings
    lockstep = Lockstep([task.problem for task in batch], settings.strategy, settings.threads)
    lock = threading.Lock()

    def live(number: int) -> None:
        task = batch[number]
        started = (task.path / "config.toml").exists()
        folder = RunFolder.open(task.path) if started else RunFolder.create(task.path, task.text())
        trainer = Trainer(
            task.problem,
            task.method,
            task.settings,
            folder,
            (lambda contender: lockstep.engine_of(number, contender))
            if settings.memory is None
            else None,
            len(batch),
            fold=task.fold,
        )
        if started:
            trainer.resume()

        def tell(_: Any) -> None:
            with lock:
                watch.on_round(task.label)
            trainer.stopping = watch.stop.is_set()

        trainer.run(tell, [make_tracker(name, task.path) for name in watch.trackers])
        if not trainer.done:
            trainer.save()
        else:
            write_text(task.path / DONE, f"{trainer.round}\n")
        folder.close()

    errors = lockstep.together([lambda n=n: live(n) for n in range(len(batch))])  # type: ignore[misc]
    return {str(t.path): error for t, error in zip(batch, errors, strict=True) if error is not None}
