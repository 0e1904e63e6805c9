"""`fedkin compare`: reads its arguments, runs the comparison, shows one table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.command.screen import (
    console,
    plain_table,
    say,
    show_capacities,
    show_results,
)
from fedkin.command.watching import watched
from fedkin.engines import need_ray
from fedkin.errors import FedkinError, unknown
from fedkin.methods.registry import form_for, get_method
from fedkin.runs import capacity
from fedkin.runs.alone import common_alone, gains, task
from fedkin.runs.capacity import mean_levels
from fedkin.runs.comparison import (
    Entry,
    execute,
    load_plan,
    plan,
    rounds_of,
    save_plan,
)
from fedkin.runs.folder import next_folder
from fedkin.runs.groups import Group, Records
from fedkin.runs.listing import gain_row, result_rows
from fedkin.runs.measures import Measure
from fedkin.runs.options import keys_given, parse, places
from fedkin.runs.plugins import short_name
from fedkin.runs.provenance import RUNS, complete
from fedkin.runs.tasks import DONE
from fedkin.runs.trackers import make_tracker
from fedkin.runs.user_code import known_method
from fedkin.runs.workers import execute_in_processes
from fedkin.tensors import write_text

MOST = {"seeds": 10_000, "jobs": 256}


def compare(words: Sequence[str]) -> None:
    """`METHOD... [--seeds 10] [--sweep KEY=A,B] [--out FOLDER] [--latex] [--KEY VALUE]...`"""
    names = list(takewhile(lambda word: not word.startswith("--"), words))
    options = list(words[len(names) :])
    if not names:
        raise FedkinError("name the methods to compare, as in: fedkin compare local fedavg perm")
    seeds = range(_count(_take(options, "--seeds"), "seeds"))
    sweep = _sweep(_take(options, "--sweep"))
    folder = _take(options, "--out")
    jobs = _count(_take(options, "--jobs"), "jobs")
    latex, trackers = _flag(options, "--latex"), _take(options, "--track")
    for tracker in trackers:
        make_tracker(tracker)
    entries: list[Entry] = []
    names = [known_method(name) for name in names]
    if len({short_name(name) for name in names}) < len(names):
        raise FedkinError("two of the methods to compare have the same name: rename one of them")
    forms = [form_for(name, [*keys_given(options), *sweep]) for name in names]
    known = [places(get_method(form)).keys() for form in forms]
    strange = sweep.keys() - set().union(*known)
    if strange:
        raise unknown("option", strange.pop(), set().union(*known))
    for name, keys in zip(names, known, strict=True):
        own = {key: values for key, values in sweep.items() if key in keys}
        entries += plan(name, parse(name, options), seeds, own)
    parent = Path(folder[0]) if folder else next_folder(RUNS, "compare")
    save_plan(parent, entries)
    finish(parent, entries, jobs, latex, trackers)


def resume(parent: Path) -> None:
    """Continue a comparison: finished runs are not repeated."""
    finish(parent, load_plan(parent))


def finish(
    parent: Path,
    entries: Sequence[Entry],
    jobs: int = 1,
    latex: bool = False,
    trackers: Sequence[str] = (),
) -> None:
    """Run the remaining runs, then show the table; Ctrl-C saves and shows how to continue."""
    left = [e for e in entries if not (e.folder(parent) / DONE).exists()]
    with watched(f"{len(left)} runs", sum(rounds_of(e.config) for e in left)) as (advance, stop):
        if any(entry.config.engine == "ray" for entry in left):
            need_ray()
            from fedkin.runs.spread import execute_on_cluster

            errors = execute_on_cluster(left, parent, advance, stop, trackers)
        elif jobs > 1:
            errors = execute_in_processes(left, parent, advance, stop, jobs, trackers)
        else:
            errors = execute(left, parent, complete, advance, stop, trackers)
    if stop.is_set():
        console.print(f"stopped; continue with: fedkin resume {parent}")
        raise SystemExit(130)
    rows, measures, alone = table_rows(parent, entries)
    if rows:
        pd.DataFrame(rows).to_csv(parent / "table.csv", index=False)
        show_results(rows, measures)
    for words in alone:
        say(f"alone: {words}")
    levels = mean_levels([(e.label, e.folder(parent)) for e in entries])
    if not levels.empty:
        levels.to_csv(parent / capacity.TABLE, index=False)
        show_capacities(levels)
    if len({entry.seed for entry in entries}) > 1 and not errors:
        show_statistics(parent)
    if latex and rows:
        from fedkin.reports.latex import latex_table
        from fedkin.reports.write import findings

        write_text(parent / "table.tex", latex_table(findings([parent])))
        say(f"LaTeX: {parent / 'table.tex'}")
    console.print(f"run folder: {parent}")
    for place, error in errors.items():
        if not isinstance(error, FedkinError):
            raise error
        console.print(f"[red]{place}: {error}[/]")
    if errors:
        first = next(iter(errors.values()))
        raise SystemExit(first.exit_code if isinstance(first, FedkinError) else 1)


def show_statistics(parent: Path) -> None:
    """Means with 95% intervals over seeds, and what may be concluded from them."""
    # imported here: it also imports what draws, which takes longer than a small comparison
    from fedkin.reports.tables import numbers
    from fedkin.reports.tables import result_rows as statistics_rows
    from fedkin.reports.write import conclusions, findings

    found = findings([parent])
    rows = statistics_rows(found.summaries, found.chosen, found.score)
    numbers(found.summaries).to_csv(parent / "statistics.csv", index=False)
    shown = [title for title in rows[0] if not title.startswith(("best round", "global"))]
    cells = [[row[title] for title in shown] for row in rows]
    console.print(plain_table(shown, cells, numbers_from=1))
    for sentence in conclusions(found):
        console.print(sentence)


def table_rows(
    parent: Path, entries: Sequence[Entry]
) -> tuple[list[dict[str, Any]], list[Measure], list[str]]:
    """One row per label (the mean over its seeds), the measures, and what alone is.

    All rows are compared with the same local-only training.
    """
    groups = []
    for label in dict.fromkeys(entry.label for entry in entries):
        folders = [e.folder(parent) for e in entries if e.label == label]
        done = tuple(Records(path) for path in folders if (path / DONE).exists())
        groups += [Group(label, done)] if done else []
    if not groups:
        return [], [], []
    measures, rows = groups[0].runs[0].measures, []
    alone = common_alone(groups, measures[0])
    for group in groups:
        found = [row for run in group.runs for row in result_rows(run.path)]
        pairs = [gains(run, measures[0], alone.get(task(group))) for run in group.runs]
        known = [g for g in pairs if g is not None]
        own = [
            {
                "better": (g.gain > g.noise).mean(),
                "same": (g.gain.abs() <= g.noise).mean(),
                "worse": (g.gain < -g.noise).mean(),
            }
            for g in known
        ]
        means = pd.DataFrame(found).drop(columns=["method", "metric"]).apply(pd.to_numeric).mean()
        shares = pd.DataFrame(own, columns=["better", "same", "worse"]).astype(float).mean()
        means[shares.index] = shares
        values = {key: None if pd.isna(v) else float(v) for key, v in means.items()}
        # a client's gain is its mean over seeds
        each = pd.concat([g.gain for g in known], axis=1).mean(axis=1) if known else None
        values |= gain_row(each)
        rows.append({"method": group.label, "metric": measures[0].name, **values})
    return rows, measures, [own.words for own in alone.values()]


def _take(options: list[str], name: str) -> list[str]:
    """Remove every `name VALUE` from the options; returns the values."""
    found = []
    while name in options:
        place = options.index(name)
        if place + 1 >= len(options):
            raise FedkinError(f"{name} needs a value")
        found.append(options[place + 1])
        del options[place : place + 2]
    return found


def _flag(options: list[str], name: str) -> bool:
    """Remove a word from the options; whether it was there."""
    there = name in options
    options[:] = [word for word in options if word != name]
    return there


def _count(given: Sequence[str], name: str) -> int:
    if not given:
        return 1
    text = given[-1]
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST[name]):
        raise FedkinError(
            f"--{name} {text[:60]}: give the number of {name}, at least 1 and at most {MOST[name]}"
        )
    return int(text)


def _sweep(texts: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.lstrip("-").replace("-", "_")
        if not equals or not all(values.split(",")):
            raise FedkinError(f"--sweep {text}: write KEY=VALUE,VALUE as in lr=0.01,0.1")
        found[key] = values.split(",")
    return found
