"""Listing of run folders, which may be damaged or of any content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.errors import FedkinError
from fedkin.runs.groups import Records, is_run
from fedkin.runs.noise import mean_interval
from fedkin.runs.plugins import short_name

Row = dict[str, float | str | None]


def result_rows(folder: Path) -> list[Row]:
    """The last evaluation of a run by its deciding measure, next to local-only training."""
    run = Records(folder)
    last, timing = _last_evaluation(run.metrics), run.timing
    first, *others = run.measures
    row: Row = {
        "method": short_name(run.method),
        "metric": first.name,
        "mean": _value(last.get(f"personal_{first}")),
        "worst": _value(last.get("worst_tenth")),
        "best": _value(last.get("best")),
        "trivial": _value(last.get(f"trivial_{first}")),
        "better": _value(last.get("better_than_alone")),
        "same": _value(last.get("same_as_alone")),
        "worse": _value(last.get("worse_than_alone")),
        **gain_row(_gains(run)),
        **{f"mean_{other}": _value(last.get(f"personal_{other}")) for other in others},
        "mb_up": float(last.get("bytes_up", 0)) / 1e6,
        "mb_down": float(last.get("bytes_down", 0)) / 1e6,
        "seconds": float(timing["seconds"].sum()) if len(timing) else 0.0,
    }
    return [row]


def gain_row(gains: pd.Series | None) -> dict[str, float | None]:
    """The mean gain over going alone and its interval over clients, by column."""
    found = None if gains is None else mean_interval(gains.to_numpy(float))
    return dict(zip(("gain", "gain_low", "gain_high"), found or (None,) * 3, strict=True))


def _gains(run: Records) -> pd.Series | None:
    """What each client gained over going alone, after the last round."""
    table = run.clients
    if "gain" not in table:
        return None
    known: pd.Series = table.loc[table["round"] == table["round"].max(), "gain"]
    return known


def find_runs(folder: Path) -> list[Row]:
    """One row per run folder below this one, oldest first; `problem` says what is broken."""
    if not folder.is_dir():
        raise FedkinError(f"there is no folder {folder}: name the folder that holds your runs")
    paths = (path for path in folder.rglob("config.toml") if is_run(path, folder))
    found = {path.parent: _age(path) for path in paths}
    return [_describe(path) for path in sorted(found, key=lambda path: (found[path], path))]


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # a broken link
        return 0.0


def _describe(path: Path) -> Row:
    row: Row = {"run": str(path), "method": None, "data": None, "done": None, "rounds": None}
    row |= {"metric": None, "personal": None, "alone": None, "problem": None}
    try:
        run = Records(path)
        data = run.settings.get("data", {})
        row["method"], row["rounds"] = run.method, run.settings.get("rounds")
        kind = "sites" if "sites" in run.settings else "?"
        row["data"] = str(data.get("path") or data.get("name") or kind)
        row["done"], last, measure = run.rounds, _last_evaluation(run.metrics), run.measures[0]
        row["metric"] = measure.name
        row["personal"] = _value(last.get(f"personal_{measure}"))
        row["alone"] = _value(last.get(f"local_{measure}"))
    except (FedkinError, OSError) as error:
        row["problem"] = str(error)
    return row


def _last_evaluation(metrics: pd.DataFrame) -> Any:
    if "personal_loss" not in metrics:
        return {}
    known = metrics.dropna(subset="personal_loss")
    return known.iloc[-1] if len(known) else {}


def _value(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)
