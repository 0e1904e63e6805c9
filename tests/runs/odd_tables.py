"""Odd tables through `advise`: an answer or a plain sentence, never a traceback or nonsense.

`python -m tests.runs.odd_tables 2000` tries so many.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin.data import DataConfig
from fedkin.errors import FedkinError
from fedkin.reports.advice_write import Advised, document, in_numbers, recommended_config
from fedkin.runs.advice import give_advice
from fedkin.runs.advice_answer import Advice, Effort
from fedkin.runs.config import read_config
from fedkin.runs.validation import validated
from tests.runs.damaged import command

ODD_NAMES = ("a", "b", " ", "1", "01", "1.0", "é", "a,b", 'q"q', "<b>", "x" * 300, "$y$", "\\",
             "a\nb", "-", "..", "日本", "true", "2020-01-01", "1e5", "=1+1")  # fmt: skip
NO_NAMES = ("", "None", "nan")  # read as missing: such a table is refused
QUICK = Effort(splits=3, rounds=1, every=1, choices=1)
DRAWN = 10  # of so many tables one has its figures drawn, which takes longest
TRAINED = 40  # of so many one is trained with the recommended config
MISSING = re.compile(r"\b(nan|inf|None)\b")


def odd_table(seed: int) -> tuple[str, dict[str, Any]]:
    """A table as text in which much may be odd, and the keys it is read with."""
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([0, 1, 3, 8, 30, 80], p=[0.01, 0.01, 0.02, 0.06, 0.45, 0.45]))
    names = rng.choice(ODD_NAMES, int(rng.choice([2, 3, 5, 7, 14])), replace=False)
    if rng.random() < 0.05:
        names[0] = rng.choice(NO_NAMES)
    share = rng.dirichlet(np.full(len(names), rng.choice([0.5, 5.0])))
    frame = pd.DataFrame({"site": rng.choice(names, rows, p=share) if rows else []})
    for number in range(int(rng.choice([0, 1, 2, 4], p=[0.03, 0.3, 0.3, 0.37]))):
        frame[f"f{number}"] = odd_column(rng, rows)
    frame["y"] = odd_target(rng, rows)
    keys: dict[str, Any] = {"client_column": "site", "target_column": "y"}
    if rng.random() < 0.1:
        keys["task"] = str(rng.choice(["classification", "regression"]))
    if rng.random() < 0.15:
        key = str(rng.choice(["group_column", "time_column", "drop_columns", "features"]))
        column = str(rng.choice(frame.columns))
        keys[key] = column if key.endswith("column") else (column,)
    if rng.random() < 0.05:
        frame = frame.drop(columns=rng.choice(frame.columns))
    if rng.random() < 0.1 and rows:
        column = rng.choice(frame.columns)
        frame[column] = frame[column].astype(object)
        frame.loc[rng.integers(rows), column] = None
    if rng.random() < 0.02:
        frame = frame.rename(columns={str(frame.columns[-1]): str(frame.columns[0])})
    text = frame.to_csv(index=False, lineterminator="\n")
    return (scribble(rng, text), keys) if rng.random() < 0.1 else (text, keys)


def scribble(rng: np.random.Generator, text: str) -> str:
    """The same text with some of it damaged, or written as others write tables."""
    place = int(rng.integers(len(text)))
    match int(rng.integers(6)):
        case 0:
            return text[:place]
        case 1:
            extra = str(rng.choice(['"', ",", "\n", "\x00", "\t", "#", "∞"]))
            return text[:place] + extra + text[place:]
        case 2:
            return "\ufeff" + text
        case 3:
            return text.replace(",", ";")
        case 4:
            return text.replace("\n", "\r\n")
        case _:
            return text + "\n\n" + text.splitlines()[0] + "\n"


def odd_column(rng: np.random.Generator, rows: int) -> Any:
    match int(rng.integers(14)):
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
        case 8:
            return rng.choice(["1", "2.5", "many", "NA", " 3"], rows)
        case 9:
            return rng.choice([np.inf, -np.inf, 0.0, 1.0], rows, p=[0.05, 0.05, 0.45, 0.45])
        case 10:
            return rng.integers(2**62, 2**63 - 1, rows)
        case 11:
            return rng.choice(["1,5", "2,25", "-3,0"], rows)
        case _:
            return rng.normal(size=rows)


def odd_target(rng: np.random.Generator, rows: int) -> Any:
    match int(rng.choice(8, p=[0.02, 0.18, 0.2, 0.18, 0.1, 0.22, 0.05, 0.05])):
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
        case 5:
            return rng.integers(0, 3, rows)
        case 6:
            return rng.choice([np.nan, 1.0, 2.5, 7.25], rows)
        case _:
            return [f"label {i}" for i in range(rows)]


def try_table(seed: int, folder: Path) -> str:
    """`refused: ...` or `advised: ...`; raises where neither holds."""
    text, keys = odd_table(seed)
    path = folder / f"table-{seed}.csv"
    path.write_text(text, encoding="utf-8", newline="")
    try:
        advice = give_advice(validated(DataConfig, {"name": str(path), **keys}, "advise"), QUICK)
    except FedkinError as error:
        said = str(error)
        assert said.strip(), "refused without a word"
        assert len(said) < 1500, "refused at too great a length"
        return f"refused: {said}"
    if seed % DRAWN:
        page, numbers = document(advice, [], folder), in_numbers(advice)
        json.dumps(numbers, allow_nan=False)
        (config := folder / f"config-{seed}.toml").write_text(recommended_config(advice), "utf-8")
    else:
        out = folder / f"out-{seed}"
        page = Advised(advice).save(out).read_text(encoding="utf-8")
        numbers = json.loads((out / "advice.json").read_text(encoding="utf-8"))
        config = out / "config.toml"
        check_numbers(out / "sites.csv")
    assert "<b>" not in page
    check_sites(advice, text)
    check_answer(advice, numbers)
    read_config(config)
    if seed % TRAINED == 0:
        code, said = command("run", config, "--rounds", 1, "-q", "--out", folder / f"run-{seed}")
        assert code == 0, said
    return f"advised: {advice.decision}"


def check_sites(advice: Advice, text: str) -> None:
    """Every site has as many rows as the csv module counts, except those that a note tells of."""
    counted: Counter[str] = Counter()
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    if rows.fieldnames is None or list(rows.fieldnames).count("site") != 1:
        return
    for row in rows:
        counted[row["site"]] += 1
    for site in advice.sites:
        assert 0 < site.rows <= counted[site.name], f"{site.name!r}: {site.rows} rows"
    lost = sum(counted.values()) - sum(site.rows for site in advice.sites)
    if lost:
        told = " ".join(advice.notes)
        assert "row" in told or "client" in told, f"{lost} rows lost without a note: {told}"


def check_answer(advice: Advice, numbers: dict[str, Any]) -> None:
    """Whether numbers are possible and agree with each other and with the words."""
    said = [sentence for sentences in numbers["words"].values() for sentence in sentences]
    odd = [sentence for sentence in said if MISSING.search(sentence)]
    assert not odd, odd
    assert numbers["decision"] in ("alone", "one", "groups", "personal")
    gains = advice.gain is not None and advice.gain.verdict == "gains"
    assert gains == (advice.decision != "alone")
    assert sum(numbers["counts"].values()) == len(advice.sites)
    sign, shown = advice.measure.sign, []
    for site in advice.sites:
        for gain in (site.gain, site.own_gain):
            if gain is not None and gain.low is not None and gain.high is not None:
                assert gain.low <= gain.mean <= gain.high
        values = [v for v in (site.trivial, site.alone, site.together) if math.isfinite(v)]
        assert all(0 <= v <= 1 for v in values) or not advice.measure.share
        own = site.alone if advice.decision == "alone" else site.together
        if math.isfinite(own):
            shown.append(own)
        if site.own_gain is not None:
            apart = sign * (site.together - site.alone)
            near = 1e-6 * (1 + abs(site.alone))
            assert abs(site.own_gain.mean - apart) <= near, (site.own_gain, apart)
    worse = shown and sign * (float(np.mean(shown)) - advice.mean_trivial) < 0
    assert not worse or any("Beware" in sentence for sentence in said)


def check_numbers(path: Path) -> None:
    """Numbers are numbers in the csv."""
    table = pd.read_csv(path)
    for column in ("rows", "trivial", "alone", "together", "gain", "low", "high", "own_gain"):
        assert pd.api.types.is_numeric_dtype(table[column]), column


def main(count: int, first: int = 0) -> int:
    said, bad = Counter[str](), 0
    with tempfile.TemporaryDirectory() as place:
        for number, seed in enumerate(range(first, first + count), 1):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", RuntimeWarning)
                    answer = try_table(seed, Path(place))
                said[answer.split(":")[0]] += 1
                if answer.startswith("refused"):
                    print(seed, answer)
            except Exception:
                bad += 1
                print(f"--- table {seed}:\n{traceback.format_exc()}", flush=True)
            if number % 50 == 0:
                print(f"{number} tried, {bad} bad", file=sys.stderr, flush=True)
    print(f"{count} odd tables, {bad} of them without a plain answer; {dict(said)}")
    return int(bad > 0)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(given[0] if given else 2000, *given[1:]))
