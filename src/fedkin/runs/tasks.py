"""Runs of one method: as many as can be computed at once, or on the shards of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkin.core.problem import Problem
from fedkin.engines.lockstep import Lockstep, can_merge
from fedkin.errors import FedkinError
from fedkin.methods import Method
from fedkin.runs.alone_once import AloneOnce
from fedkin.runs.folder import RunFolder
from fedkin.runs.settings import Settings
from fedkin.runs.trackers import make_tracker
from fedkin.runs.training import Trainer
from fedkin.tensors import write_text

if TYPE_CHECKING:
    from fedkin.engines.ray.shards import Shards  # which needs Ray

# in the folder of a run that is finished
DONE = "done"
# how many numbers of stacked models one lockstep may hold: 1 GB in single precision
MOST_NUMBERS = 250_000_000


@dataclass(frozen=True)
class Task:
    """One run to be made: where, its problem and method, and the text of its config file.

    With `shards` its clients are on a Ray cluster. `alone` has what other runs know of going alone.
    """

    label: str
    path: Path
    problem: Problem
    method: Method
    settings: Settings
    text: Callable[[], str]
    fold: int = 0
    shards: Shards | None = None
    alone: AloneOnce | None = None


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


def perform(tasks: Sequence[Task], watch: Watch) -> Errors:
    """Run tasks of one method, as many as can be at once; errors by folder."""
    errors = Errors()
    for batch in batches([task for task in tasks if task.shards is None]):
        if watch.stop.is_set():
            break
        errors |= _together(batch, watch)
    for task in tasks:
        if task.shards is not None and not watch.stop.is_set():
            errors |= _on_shards(task, task.shards, watch)
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
        merged = partial(lockstep.engine_of, number) if settings.memory is None else None
        with _folder(task) as (folder, started):
            trainer = Trainer(
                task.problem, task.method, task.settings, folder, merged, len(batch),
                fold=task.fold, alone=task.alone,
            )  # fmt: skip
            _live(task, trainer, started, watch, lock)

    errors = lockstep.together([lambda n=n: live(n) for n in range(len(batch))])  # type: ignore[misc]
    return {str(t.path): error for t, error in zip(batch, errors, strict=True) if error is not None}


def _on_shards(task: Task, shards: Shards, watch: Watch) -> Errors:
    from fedkin.runs.cluster import Cluster  # which needs Ray

    try:
        with _folder(task) as (folder, started):
            cluster = Cluster(shards, task.problem, task.settings, folder)
            trainer = Trainer(
                task.problem, task.method, task.settings, folder, cluster=cluster, fold=task.fold
            )
            _live(task, trainer, started, watch, threading.Lock())
    except FedkinError as error:
        return {str(task.path): error}
    finally:
        shards.close_actors()
    return {}


@contextmanager
def _folder(task: Task) -> Iterator[tuple[RunFolder, bool]]:
    """The run's folder, which is made if it is not there; whether it was."""
    started = (task.path / "config.toml").exists()
    made = RunFolder.open(task.path) if started else RunFolder.create(task.path, task.text())
    with made as folder:
        yield folder, started


def _live(task: Task, trainer: Trainer, started: bool, watch: Watch, lock: threading.Lock) -> None:
    """Train from the last checkpoint on, to the end or until it is to stop."""
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
