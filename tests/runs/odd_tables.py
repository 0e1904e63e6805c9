"""Odd tables through `advise`: an answer or a plain sentence, never a traceback or nonsense.

`python -m tests.runs.odd_tables 2000` tries so many.
"""

from __future__ import annotations

import json
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin.data import DataConfig
from fedkin.errors import FedkinError
from fedkin.reports.advice_write import Advised, document, in_numbers, recommended_config
from fedkin.runs.advice import give_advice
from fedkin.runs.advice_answer import Effort

ODD_NAMES = ("a", "b", " ", "1", "01", "1.0", "é", "a,b", 'q"q', "<b>", "x" * 300, "$y$", "\\",
             "a\nb", "-", "..", "日本")  # fmt: skip
NO_NAMES = ("", "None", "nan")  # read as missing: such a table is refused
QUICK = Effort(3, 1, 1)
DRAWN = 10  # of so many tables one has its figures drawn, which takes longest


def odd_table(seed: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table in which much may be odd: sizes, names, types, missing and huge values."""
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([0, 1, 3, 8, 30, 80], p=[0.01, 0.01, 0.02, 0.06, 0.45, 0.45]))
    names = rng.choice(ODD_NAMES, int(rng.integers(2, 7)), replace=False)
    if rng.random() < 0.05:
        names[0] = rng.choice(NO_NAMES)
    frame = pd.DataFrame({"site": rng.choice(names, rows) if rows else []})
    for number in range(int(rng.choice([0, 1, 2, 4], p=[0.03, 0.3, 0.3, 0.37]))):
        frame[f"f{number}"] = odd_column(rng, rows)
    frame["y"] = odd_target(rng, rows)
    if rng.random() < 0.05:
        frame = frame.drop(columns=rng.choice(frame.columns))
    if rng.random() < 0.1 and rows:
        column = rng.choice(frame.columns)
        frame[column] = frame[column].astype(object)
        frame.loc[rng.integers(rows), column] = None
    keys = {"client_column": "site", "target_column": "y"}
    if rng.random() < 0.1:
        keys["task"] = str(rng.choice(["classification", "regression"]))
    return frame, keys


def odd_column(rng: np.random.Generator, rows: int) -> Any:
    match int(rng.integers(9)):
        case 0:
            return np.full(rows, 3.0)
        case 1:
            return rng.choice([np.nan, 1.0], rows)
        case 2:
            return np.full(rows, np.nan)
        case 3:
            return 10.0 ** rng.integers(-30, 29, rows)
        case 4:
            return rng.choice(["red", "blue", "<i>", ""], rows)
        case 5:
            return np.arange(rows)
        case 6:
            return rng.choice([True, False], rows)
        case 7:
            return [str(day) for day in pd.date_range("2020-01-01", periods=rows)]
        case _:
            return rng.normal(size=rows)


def odd_target(rng: np.random.Generator, rows: int) -> Any:
    match int(rng.choice(6, p=[0.02, 0.21, 0.21, 0.2, 0.1, 0.26])):
        case 0:
            return np.zeros(rows)
        case 1:
            return rng.choice(["yes", "no", "<b>"], rows)
        case 2:
            return rng.normal(554, 66, rows)
        case 3:
            return rng.choice([0, 1], rows, p=[0.9, 0.1])
        case 4:
            return 1e6 * rng.standard_cauchy(rows)
        case _:
            return rng.integers(0, 3, rows)


def try_table(seed: int, folder: Path) -> str:
    """`refused: ...` or `advised: ...`; raises where neither holds."""
    frame, keys = odd_table(seed)
    path = folder / f"table-{seed}.csv"
    frame.to_csv(path, index=False)
    try:
        advice = give_advice(DataConfig(name=str(path), **keys), QUICK)
    except FedkinError as error:
        return f"refused: {error}"
    if seed % DRAWN:
        page, numbers = document(advice, [], folder), in_numbers(advice)
        json.dumps(numbers, allow_nan=False)
        tomllib.loads(recommended_config(advice))
    else:
        out = folder / f"out-{seed}"
        page = Advised(advice).save(out).read_text(encoding="utf-8")
        numbers = json.loads((out / "advice.json").read_text(encoding="utf-8"))
    assert "<b>" not in page
    assert numbers["decision"] in ("alone", "one", "groups", "personal")
    assert sum(numbers["counts"].values()) == len(advice.sites) == frame["site"].nunique()
    for site in numbers["sites"]:
        gain = site["gain"]
        if gain and gain["low"] is not None:
            assert gain["low"] <= gain["mean"] <= gain["high"]
        if advice.measure.share and site["alone"] is not None:
            assert 0 <= site["alone"] <= 1
    return f"advised: {advice.decision}"


def main(count: int, first: int = 0) -> None:
    said: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as place:
        for seed in range(first, first + count):
            try:
                answer = try_table(seed, Path(place))
            except Exception:
                print(f"table {seed}:", file=sys.stderr)
                raise
            kind = answer.split(":")[0]
            said[kind] = said.get(kind, 0) + 1
            if (seed + 1) % 50 == 0:
                print(seed + 1, said, flush=True)
    print(said)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000, *map(int, sys.argv[2:]))
