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
from fedkin.methods.registry import form_for
from fedkin.runs.config import RunConfig, make_config
from fedkin.runs.folder import RunFolder
from fedkin.runs.options import merge, parse
from fedkin.runs.plugins import short_name
from fedkin.runs.training import Trainer
from fedkin.tensors import write_text

PLAN, DONE = "compare.json", "done"
# how many numbers of stacked models one lockstep may hold: 1 GB in single precision
MOST_NUMBERS = 250_000_000


@dataclass(frozen=True)
class Entry:
    """One run of a comparison: its label (method and swept values), seed and config."""

    label: str
    seed: int
    config: RunConfig

    def folder(self, parent: Path) -> Path:
        return parent / self.label / f"seed-{self.seed}"


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
        return from_rows(json.loads((parent / PLAN).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
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
    describe: Callable[[RunConfig, ClientData], str],
    on_round: Callable[[str], None],
    stop: threading.Event,
) -> dict[str, BaseException]:
    """Run the unfinished runs; returns the errors of runs that failed, by folder.

    `describe` writes a run's config file; `on_round(label)` is called after every round. When
    `stop` is set every run finishes its round and saves.
    """
    errors: dict[str, BaseException] = {}
    todo = [entry for entry in entries if not (entry.folder(parent) / DONE).exists()]
    data: dict[str, ClientData] = {}

    def data_of(entry: Entry) -> ClientData:
        key = f"{entry.seed} {entry.config.data.model_dump_json()}"
        if key not in data:
            data[key] = entry.config.make_data()
        return data[key]

    for method in dict.fromkeys(entry.config.method for entry in todo):
        mine = [entry for entry in todo if entry.config.method == method]
        problems = [entry.config.make_problem(data_of(entry)) for entry in mine]
        for batch in batches(mine, problems):
            if stop.is_set():
                break
            for entry, error in _together(batch, parent, describe, on_round, stop):
                errors[str(entry.folder(parent))] = error
        data.clear()
    return errors


Pair = tuple[Entry, Problem]


def batches(entries: Sequence[Entry], problems: Sequence[Problem]) -> list[list[Pair]]:
    """Batches of runs to compute as one: same shape, and no more than fit in memory.

    A run with a memory limit is computed alone: only then can its state go to files.
    """
    found: list[list[Pair]] = []
    for pair in zip(entries, problems, strict=True):
        numbers = pair[1].num_clients * pair[1].size
        for batch in found:
            alike = can_merge([batch[0][1], pair[1]]) and pair[0].config.memory is None
            if alike and (len(batch) + 1) * numbers <= MOST_NUMBERS:
                batch.append(pair)
                break
        else:
            found.append([pair])
    return found


def _together(
    batch: Sequence[Pair],
    parent: Path,
    describe: Callable[[RunConfig, ClientData], str],
    on_round: Callable[[str], None],
    stop: threading.Event,
) -> list[tuple[Entry, BaseException]]:
    settings = batch[0][0].config.settings()
    lockstep = Lockstep([problem for _, problem in batch], settings.strategy, settings.threads)
    lock = threading.Lock()

    def live(number: int) -> None:
        entry, problem = batch[number]
        path = entry.folder(parent)
        started = (path / "config.toml").exists()
        text = "" if started else describe(entry.config, problem.data)
        folder = RunFolder.open(path) if started else RunFolder.create(path, text)
        trainer = Trainer(
            problem,
            entry.config.make_method(),
            entry.config.settings(),
            folder,
            (lambda contender: lockstep.engine_of(number, contender))
            if settings.memory is None
            else None,
            len(batch),
        )
        if started:
            trainer.resume()

        def tell(_: Any) -> None:
            with lock:
                on_round(entry.label)
            trainer.stopping = stop.is_set()

        trainer.run(tell)
        if trainer.round < entry.config.rounds:
            trainer.save()
        else:
            write_text(path / DONE, f"{trainer.round}\n")
        folder.close()

    errors = lockstep.together([lambda n=n: live(n) for n in range(len(batch))])  # type: ignore[misc]
    return [(batch[i][0], error) for i, error in enumerate(errors) if error is not None]
