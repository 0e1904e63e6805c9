"""Commands that only look: at runs there are, and at how data fall into clients."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.command.screen import console, measured, plain_table, say
from fedkin.data import DataConfig, describe, load, plot, summary
from fedkin.data.describe import describe_columns, target_words
from fedkin.data.notes import COLUMN
from fedkin.errors import FedkinError
from fedkin.runs.listing import find_runs
from fedkin.runs.measures import measure_named
from fedkin.runs.validation import validated
from fedkin.tensors import write_text


def list_runs(folder: Path, csv: Path | None) -> None:
    """One row per run folder: method, data, rounds done, and how good personal models are."""
    rows = find_runs(folder)
    if csv:
        write_text(csv, pd.DataFrame(rows).to_csv(index=False))
    titles = ("run", "method", "data", "rounds", "metric", "personal", "alone")
    cells = [
        [
            str(row["run"]),
            str(row["method"] or "-"),
            str(row["data"] or "-"),
            f"{'-' if row['done'] is None else row['done']}/{row['rounds'] or '-'}",
            str(row["metric"] or "-"),
            *(measured(row[name], measure_named(row["metric"])) for name in ("personal", "alone")),
        ]
        for row in rows
    ]
    console.print(plain_table(titles, cells, numbers_from=3))
    for row in rows:
        if row["problem"]:
            say(f"note: {row['problem']}")


def partition(
    values: dict[str, Any], picture: Path | None, details: bool, seed: int, csv: Path | None
) -> None:
    """Partition a data set into clients and show the result."""
    others = [key for table in values.items() if table[0] != "data" for key in _keys(*table)]
    if others:
        raise FedkinError(
            f"partition takes keys of [data] only, and --{others[0]} is not one of them"
        )
    start = time.perf_counter()
    data = load(validated(DataConfig, values["data"], "data"), seed)
    frame = describe(data)
    for name, value in summary(data).items():
        say(f"{name}: {value}")
    columns = describe_columns(data) if details else None
    if columns is not None:
        say(target_words(data))
        cells = [[str(cell) for cell in row] for row in columns.itertuples(index=False)]
        console.print(plain_table(list(columns), cells))
    for note in data.notes if details else ():
        if columns is None or not COLUMN.fullmatch(note):
            say(f"note: {note}")
    if details:
        say(frame.to_string())
    if csv:
        write_text(csv, frame.to_csv())
    if picture:
        plot(data, picture)
        say(f"picture: {picture}")
    say(f"({time.perf_counter() - start:.1f} s)")


def _keys(name: str, value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else [name]
