"""`fedkin sites`: the `[sites]` table of a config, written from tables instead of by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin.data.columns import as_numbers
from fedkin.data.config import SUFFIXES
from fedkin.data.tables import read_file
from fedkin.errors import FedkinError, unknown
from fedkin.toml import to_toml

MOST_KINDS = 50  # different words of a category; more are names or texts
MOST_CLASSES = 20


def sites_table(
    paths: Sequence[Path], target: str, leave_out: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """The tables [data] and [sites] of a config for these files taken together, and notes on
    columns that were left out."""
    frame = pd.concat([_read(path) for path in paths], ignore_index=True)
    for column in (target, *leave_out):
        if column not in frame.columns:
            raise FedkinError(f"{unknown('column', column, frame.columns)} in {paths[0]}")
    features: list[str] = []
    categories: dict[str, list[str]] = {}
    scale: dict[str, list[float]] = {}
    notes: list[str] = []
    for name in (c for c in frame.columns if c != target and c not in leave_out):
        numbers = as_numbers(frame[name])
        if numbers is not None:
            features.append(name)
            scale[name] = _scale(numbers)
            continue
        kinds = sorted({str(value) for value in frame[name].dropna()})
        if not 1 < len(kinds) <= MOST_KINDS:
            notes.append(f"column '{name}' is left out: it has {len(kinds)} different words")
            continue
        features.append(name)
        categories[name] = kinds
    sites: dict[str, Any] = {"features": features}
    numbers = as_numbers(frame[target])
    whole = numbers is None or bool((numbers == np.round(numbers)).all())
    kinds = sorted({str(v) for v in frame[target].dropna()}) if numbers is None else []
    if numbers is not None and whole:
        kinds = [str(int(v)) for v in np.unique(numbers[np.isfinite(numbers)])]
    if numbers is None or (whole and len(kinds) <= MOST_CLASSES):
        sites["classes"] = kinds
    else:
        scale[target] = _scale(numbers)
    sites |= {"categories": categories} if categories else {}
    sites |= {"scale": scale} if scale else {}
    return to_toml({"data": {"target_column": target}, "sites": sites}), notes


def _read(path: Path) -> pd.DataFrame:
    kind = SUFFIXES.get(path.suffix.lower())
    if kind not in ("csv", "parquet"):
        raise FedkinError(f"'{path}' is no .csv or .parquet table")
    return read_file(str(path), kind).rename(columns=str)


def _scale(numbers: np.ndarray[Any, Any]) -> list[float]:
    """Centre and spread, to three digits: enough to scale by, and little about the rows."""
    known = numbers[np.isfinite(numbers)]
    if not len(known):
        return [0.0, 1.0]
    return [float(f"{known.mean():.3g}"), float(f"{known.std():.3g}") or 1.0]
