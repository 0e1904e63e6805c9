"""`fedkin.compare` and `fedkin.report`: the same as the commands, from Python and notebooks."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.core.problem import Problem
from fedkin.data import checksum
from fedkin.errors import FedkinError
from fedkin.methods import Method
from fedkin.methods.registry import get_method
from fedkin.reports import curves, tables
from fedkin.reports.latex import latex_table
from fedkin.reports.write import Findings, conclusions, findings, write_report
from fedkin.runs.comparison import Entry, execute, plan, save_plan
from fedkin.runs.options import by_keys, places
from fedkin.runs.plots import Picture
from fedkin.runs.progress import Progress, followers
from fedkin.runs.provenance import BY_PYTHON, complete, versions
from fedkin.runs.run import Run
from fedkin.runs.settings import Settings, make_settings
from fedkin.runs.stored import StoredRun
from fedkin.runs.tasks import Task, Watch, perform
from fedkin.toml import to_toml

Problems = Problem | Callable[[int], Problem]
PICTURES = ("rounds", "clients", "gains")


class Comparison:
    """Several methods on the same clients: `table`, `conclusions`, `plot()`, `runs`, `to_latex()`.

    Without a folder of its own it keeps its runs in a temporary one, for as long as it lives.
    """

    def __init__(self, folder: Path, kept: Any = None) -> None:
        self.folder, self._kept = folder, kept

    @cached_property
    def findings(self) -> Findings:
        """All that a report says, in numbers."""
        return findings([self.folder])

    @property
    def table(self) -> pd.DataFrame:
        """One row per method, the best first: means over seeds with their 95 % intervals."""
        return tables.numbers(self.findings.summaries)

    @property
    def tests(self) -> pd.DataFrame:
        """One row per pair of methods: the difference, its interval and its p-value."""
        return tables.paired_numbers(self.findings.pairs)

    @property
    def conclusions(self) -> list[str]:
        """What may be concluded, in sentences."""
        return conclusions(self.findings)

    @property
    def runs(self) -> dict[str, list[StoredRun]]:
        """The runs of every method, one per seed; `personal` has the models."""
        return {g.label: [StoredRun(run.path) for run in g.runs] for g in self.findings.groups}

    def plot(self, what: str = "rounds") -> Picture:
        """A picture: scores over `rounds`, all `clients`, or the best method's `gains`."""
        found = self.findings
        if what not in PICTURES:
            raise FedkinError(f"there is no picture '{what}': choose from {', '.join(PICTURES)}")
        if what == "clients":
            drawing = curves.distribution(found.compared, found.score)
        else:
            draw = curves.score_curves if what == "rounds" else curves.gain_bars
            drawings = draw(found.compared, found.score)
            if not drawings:
                raise FedkinError("no gain is known: compare with `local`, or keep baseline=True")
            drawing = drawings[0]
        assert isinstance(drawing.figure, Picture)
        return drawing.figure

    def report(self, out: str | Path | None = None) -> Report:
        """The page about these runs."""
        return report(self, out=out)

    def to_latex(self) -> str:
        """The table for a paper (booktabs)."""
        return latex_table(self.findings)

    def __repr__(self) -> str:
        rows = tables.result_rows(self.findings.summaries, self.findings.chosen, self._score)
        return "\n".join([str(pd.DataFrame(rows).to_string(index=False)), *self.conclusions])

    def _repr_html_(self) -> str:
        return shown_as_html(self.findings)

    @property
    def _score(self) -> Any:
        return self.findings.score


class Report:
    """A page that was written: `path`; in a notebook its answer and its table."""

    def __init__(self, path: Path, found: Findings) -> None:
        self.path, self.findings = path, found

    def __repr__(self) -> str:
        return f"<Report {self.path}: {' '.join(conclusions(self.findings))}>"

    def _repr_html_(self) -> str:
        link = escape(str(self.path), quote=True)
        return f'{shown_as_html(self.findings)}<p>report: <a href="{link}">{link}</a></p>'


def shown_as_html(found: Findings) -> str:
    """The table of results and what may be concluded from it."""
    rows = tables.result_rows(found.summaries, found.chosen, found.score)
    table = pd.DataFrame(rows).to_html(index=False, escape=True)
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in conclusions(found))
    return f"{table}<ul>{said}</ul>"


def report(
    *runs: str | Path | Run | StoredRun | Comparison,
    out: str | Path | None = None,
    target: float | None = None,
) -> Report:
    """Write one self-contained page about runs (folders, runs or comparisons).

    `out` is the .html file (default: report.html in the first folder). `target` is the score
    whose cost is shown.
    """
    folders = [_folder_of(run) for run in runs]
    if not folders:
        raise FedkinError("name the runs to report on, as in: fedkin.report('runs/compare-001')")
    page = Path(out) if out else folders[0] / "report.html"
    if page.suffix.lower() not in (".html", ".htm"):
        raise FedkinError(f"out = '{page}': the report is an .html file")
    return Report(page, write_report(folders, page, target))


def _folder_of(run: str | Path | Run | StoredRun | Comparison) -> Path:
    if isinstance(run, str | Path):
        return Path(run)
    place = run.path if isinstance(run, StoredRun) else run.folder
    if place is None:
        raise FedkinError("this run has no folder: train it with folder='runs/my-run'")
    return place


def compare(
    methods: Sequence[str | Method],
    problem: Problems | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    folder: str | Path | None = None,
    on_round: Callable[[Progress], None] | None = None,
    progress: bool | None = None,
    trackers: Sequence[str] = (),
    **keys: Any,
) -> Comparison:
    """Train several methods on the same clients; repeats and sweeps of a method are one.

    Without a `problem`, `keys` are those of a config file: `data="patients.csv",
    client_column="site", rounds=50, lr=0.1`. With a `Problem` of your own, or a function that
    makes one from a seed (so that every seed has its own split), they are the run's settings and
    hyper-parameters. `sweep` gives a key several values: `{"lr": [0.01, 0.1]}`. `seeds` is how
    many, or which. With a `folder` everything is kept there; `trackers` are names.
    """
    if isinstance(methods, str | Method) or not methods:
        raise FedkinError("name the methods to compare in a list, as in ['local', 'fedavg']")
    numbers = range(seeds) if isinstance(seeds, int) else list(seeds)
    if not numbers:
        raise FedkinError("a comparison needs one seed at least")
    kept = None if folder else tempfile.TemporaryDirectory(prefix="fedkin-compare-")
    parent = Path(folder) if folder else Path(kept.name)  # type: ignore[union-attr]
    swept = {key: list(values) for key, values in (sweep or {}).items()}
    if problem is None:
        entries = [e for m in methods for e in _entries(m, numbers, swept, keys)]
        entries = [
            replace(e, label=name) for e, name in zip(entries, _labels(entries), strict=True)
        ]
        save_plan(parent, entries)
        rounds = sum(entry.config.rounds for entry in entries)
    else:
        tasks = [t for m in methods for t in _tasks(m, problem, numbers, swept, keys)]
        named = zip(tasks, _labels(tasks), strict=True)
        tasks = [replace(task, path=parent / name / task.path) for task, name in named]
        if any(task.path.exists() for task in tasks):
            raise FedkinError(f"{parent} already exists: choose another folder")
        rounds = sum(task.settings.rounds for task in tasks)
    follow, done = followers(f"{len(methods)} methods", on_round, progress), 0

    def advance(label: str) -> None:
        nonlocal done
        done += 1
        if follow:
            follow(Progress(done, rounds))

    if problem is None:
        errors = execute(entries, parent, complete, advance, threading.Event(), trackers)
    else:
        errors = {}
        for name in dict.fromkeys(task.method.name for task in tasks):
            same = [task for task in tasks if task.method.name == name]
            errors |= perform(same, Watch(advance, threading.Event(), trackers))
    if errors:
        raise next(iter(errors.values()))
    return Comparison(parent, kept)


def _entries(
    method: str | Method,
    seeds: Sequence[int],
    sweep: Mapping[str, Sequence[Any]],
    keys: Mapping[str, Any],
) -> list[Entry]:
    """Runs described by config keys."""
    name = method if isinstance(method, str) else method.name
    known = places(get_method(name))
    values = by_keys(name, keys)
    if isinstance(method, Method):
        values["options"] = {**asdict(method), **values.get("options", {})}
    words = {key: [str(v) for v in several] for key, several in sweep.items() if key in known}
    return plan(name, values, seeds, words)


def _tasks(
    method: str | Method,
    problem: Problems,
    seeds: Sequence[int],
    sweep: Mapping[str, Sequence[Any]],
    keys: Mapping[str, Any],
) -> list[Task]:
    """Runs of a problem made in Python."""
    first = get_method(method)() if isinstance(method, str) else method
    own = asdict(first)
    settings = {k: v for k, v in keys.items() if k not in own}
    first = replace(first, **{k: v for k, v in keys.items() if k in own})
    mine = {key: values for key, values in sweep.items() if key in own}
    found = []
    for values in product(*mine.values()):
        chosen = dict(zip(mine, values, strict=True))
        label = "-".join([first.name, *(f"{k}={v}".replace("/", "_") for k, v in chosen.items())])
        for seed in seeds:
            made = problem if isinstance(problem, Problem) else problem(seed)
            own_settings = make_settings({**settings, "seed": seed})
            place, trained = Path(f"seed-{seed}"), replace(first, **chosen)
            text = _text(trained, own_settings, made)
            found.append(Task(label, place, made, trained, own_settings, text))
    return found


def _labels(runs: Sequence[Entry] | Sequence[Task]) -> list[str]:
    """The label of every run; the same method given twice is numbered."""
    found, met = [], Counter[tuple[str, str]]()
    for run in runs:
        which = str(run.seed if isinstance(run, Entry) else run.path)
        met[run.label, which] += 1
        times = met[run.label, which]
        found.append(run.label if times == 1 else f"{run.label}-{times}")
    return found


def _text(method: Method, settings: Settings, problem: Problem) -> Callable[[], str]:
    """The config file of a run made in Python; it names the data by their checksum."""

    def text() -> str:
        made_with = {**versions(), "by": BY_PYTHON, "data_sha256": checksum(problem.data)}
        about = {"method": method.name, **asdict(settings), "options": asdict(method)}
        return to_toml({**about, "made_with": made_with})

    return text
