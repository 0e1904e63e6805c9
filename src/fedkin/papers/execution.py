"""Run an item's panels, as far as they have not been run, and read off what they measure."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.data import ClientData
from fedkin.errors import DivergedError, FedkinError
from fedkin.papers.item import Panel
from fedkin.papers.measures import Measure
from fedkin.papers.outcome import FACTS, MEASURED, TOOK, prune, read_facts, took
from fedkin.papers.planning import Job
from fedkin.papers.tuning import tuned
from fedkin.runs.comparison import Entry, execute
from fedkin.runs.config import RunConfig, read_config
from fedkin.runs.groups import Records
from fedkin.runs.tasks import DONE
from fedkin.runs.workers import execute_in_processes
from fedkin.tensors import write_text

Describe = Callable[[RunConfig, ClientData], str]
# in a run's folder: what was read off its models, and that its training diverged
NOTES, DIVERGED = "read_off.json", "diverged.txt"


STOPPED = "stopped; the same command goes on where it stands"


class StoppedError(FedkinError):
    """Stopped by the user; what was done is kept."""

    exit_code = 130


# running --------------------------------------------------------------------------------


def run(
    job: Job, describe: Describe, on_round: Callable[[str], None], stop: threading.Event,
    jobs: int = 1,
) -> None:  # fmt: skip
    """Run what is not there yet, read off the measures, drop models that nobody needs.

    With several `jobs` in so many processes at a time, but those whose runs are timed.
    """
    for panels in _groups(job):
        if panels[0].experiment:
            _keep(job, panels[0], _experiment(job, panels[0], stop))
            continue
        panels = [_tuned(job, panel, describe, on_round, stop) for panel in panels]
        if stop.is_set():
            raise StoppedError(STOPPED)
        entries = [entry for panel in panels for entry in panel.entries(job.seeds)]
        _check_same(entries, job.parent)
        diverged = _run_panels(job, panels, entries, describe, on_round, stop, jobs)
        for panel in panels:
            _keep(job, panel, _measure(job, panel, diverged))


def _tuned(
    job: Job, panel: Panel, describe: Describe, on_round: Callable[[str], None],
    stop: threading.Event,
) -> Panel:  # fmt: skip
    """With its options chosen; what that takes is the panel's time too."""
    start = computed()
    found = tuned(panel, job.parent, describe, on_round, stop)
    if any(line.tune for line in panel.lines):
        _add_time(job.parent / panel.folder, computed() - start)
    return found


def _groups(job: Job) -> list[list[Panel]]:
    """Panels to be run at once: all, where the item says so, else one after the other."""
    if job.item.together:
        return [list(job.panels)]
    return [[panel] for panel in job.panels]


def _run_panels(
    job: Job, panels: Sequence[Panel], entries: list[Entry], describe: Describe,
    on_round: Callable[[str], None], stop: threading.Event, jobs: int,
) -> set[Path]:  # fmt: skip
    """The folders of runs that diverged; those that did before are not run again."""
    folders = [entry.folder(job.parent) for entry in entries]
    diverged = {folder for folder in folders if (folder / DIVERGED).exists()}
    entries = [entry for entry in entries if entry.folder(job.parent) not in diverged]
    alone = any(panel.alone for panel in panels)
    groups = _parts(entries, alone, jobs)
    start = computed()
    for group in groups:
        if jobs > 1 and not alone:
            found = execute_in_processes(group, job.parent, on_round, stop, jobs)
        else:
            found = execute(group, job.parent, describe, on_round, stop)
        for place, error in found.items():
            if not isinstance(error, DivergedError):
                raise error
            write_text(Path(place) / DIVERGED, f"{error}\n")
            diverged.add(Path(place))
        for entry in group:
            _drop_models(job, entry.folder(job.parent))
        if stop.is_set():
            break
    for panel in panels:
        _add_time(job.parent / panel.folder, (computed() - start) / len(panels))
    if stop.is_set():
        raise StoppedError(STOPPED)
    return diverged


def _parts(entries: list[Entry], alone: bool, jobs: int) -> list[list[Entry]]:
    """Runs to be started at once: single ones, where they are timed, those of a seed one after the
    other, as machines change while they compute; all for several processes; else a method's, so
    that the disk holds no more models than these have."""
    if alone:
        return [[entry] for entry in sorted(entries, key=lambda entry: entry.seed)]
    if jobs > 1:
        return [entries]
    methods = dict.fromkeys(entry.config.method for entry in entries)
    return [[entry for entry in entries if entry.config.method == method] for method in methods]


def _drop_models(job: Job, path: Path) -> None:
    """Of a finished run, once what is to be read off them has been."""
    if (path / DONE).exists():
        for measure in job.item.measures:
            if measure.once:
                _read_off(measure, path)
        prune(path)


def _check_same(entries: Iterable[Entry], parent: Path) -> None:
    """Refuse to mix runs of this recipe with runs of another one."""
    for entry in entries:
        path = entry.folder(parent) / "config.toml"
        if path.exists() and _compared(read_config(path)) != _compared(entry.config):
            raise FedkinError(
                f"{path.parent} was run with other settings than the recipe has now: remove it, "
                "or choose another --out"
            )


def _compared(config: RunConfig) -> dict[str, Any]:
    """A config without what may differ between machines."""
    data = config.data.resolved().model_copy(update={"path": None, "data_dir": None})
    model = config.model.model_copy(update={"device": "cpu"})
    full = config.model_copy(update={"data": data, "model": model}).model_dump()
    options: dict[str, Any] = json.loads(json.dumps(asdict(config.make_method())))
    return {**full, "options": options}


def _measure(job: Job, panel: Panel, diverged: set[Path]) -> list[dict[str, Any]]:
    rows = []
    for line, entry in panel.runs(job.seeds):
        path = entry.folder(job.parent)
        for measure in job.item.measures:
            value = float("nan") if path in diverged else _read_off(measure, path)
            if value is not None:
                rows.append({"panel": panel.name, "line": line.label, "seed": entry.seed,
                             "measure": measure.name, "value": value})  # fmt: skip
    return rows


def _read_off(measure: Measure, path: Path) -> float | None:
    """A run's measure; from its notes, if it is one that is read off once."""
    if not measure.once:
        return measure.of(Records(path))
    place = path / NOTES
    notes: dict[str, Any] = json.loads(place.read_text("utf-8")) if place.exists() else {}
    if measure.title not in notes:
        notes[measure.title] = measure.of(Records(path))
        write_text(place, json.dumps(notes, indent=1))
    value: float | None = notes[measure.title]
    return value


def _experiment(job: Job, panel: Panel, stop: threading.Event) -> list[dict[str, Any]]:
    """What every seed gives; from its file, where it was computed before with the same values."""
    assert panel.experiment is not None
    rows = []
    for seed in range(job.seeds):
        place = job.parent / panel.folder / f"seed-{seed}.json"
        known: dict[str, Any] = json.loads(place.read_text("utf-8")) if place.exists() else {}
        if known.get("run") != dict(panel.run):
            if stop.is_set():
                raise StoppedError(STOPPED)
            start = computed()
            known = {"run": dict(panel.run), "found": panel.experiment(seed=seed, **panel.run)}
            _add_time(place.parent, computed() - start)
            write_text(place, json.dumps(known, indent=1))
        rows += [{"panel": panel.name, "line": label, "seed": seed, "measure": name,
                  "value": value} for label, found in known["found"].items()
                 for name, value in found.items()]  # fmt: skip
    return rows


def computed() -> float:
    """Processor seconds so far, with those of workers that have ended: they say what an item costs
    whatever else the machine does."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _add_time(folder: Path, seconds: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TOOK, json.dumps({"seconds": took(folder) + seconds}))


def _keep(job: Job, panel: Panel, rows: list[dict[str, Any]]) -> None:
    """Write what was measured beside what is there of other panels and of its own other lines."""
    job.folder.mkdir(parents=True, exist_ok=True)
    path = job.folder / MEASURED
    old = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["panel", "line"])
    lines = {row["line"] for row in rows}
    kept = old[(old["panel"] != panel.name) | ~old["line"].isin(lines)]
    table = pd.concat([kept, pd.DataFrame(rows)]) if len(kept) else pd.DataFrame(rows)
    write_text(path, table.to_csv(index=False))
    facts = read_facts(job.folder)
    facts[panel.name] = {"seeds": job.seeds, "rounds": panel.run.get("rounds"),
                         "stood_in": panel.stood_in, "folder": panel.folder,
                         "looks": job.looks, "made": date.today().isoformat()}  # fmt: skip
    write_text(job.folder / FACTS, json.dumps(facts, indent=1))
