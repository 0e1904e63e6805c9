"""Columns of plain numbers, all at once: the same results as one by one, in tables of thousands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedkin.data.columns import HUGE, NumberColumn
from fedkin.data.partition import Array, Rows

if TYPE_CHECKING:
    import pandas as pd


def plain_values(frame: pd.DataFrame, names: Sequence[str]) -> tuple[list[str], Array]:
    """Of these columns those that are floats or whole numbers, and their values [columns, rows]."""
    kinds = dict(zip(frame.columns, (getattr(t, "kind", "O") for t in frame.dtypes), strict=True))
    plain = [name for name in names if kinds[name] in "fiu"]
    values = np.ascontiguousarray(frame[plain].to_numpy(np.float64).T)
    return plain, values


def learn_plain(
    frame: pd.DataFrame, train: Rows, standardise: bool, close_look: int
) -> dict[str, NumberColumn]:
    """Columns of numbers without missing values that cannot be identifiers, by name.

    Whole numbers with many values in a narrow range may be some, and are left to a closer look;
    fewer rows than `close_look` say nothing. Rows of the values are contiguous, so that sums are
    taken in the same order as of one column, and have the same last digit.
    """
    names, values = plain_values(frame, list(frame.columns))
    known = np.isfinite(values).all(1) & (np.abs(values).max(1, initial=0) < HUGE)
    names = [names[i] for i in np.flatnonzero(known).tolist()]
    if not names:
        return {}
    own = np.ascontiguousarray(values[known][:, train])
    ordered = np.sort(own, axis=1)
    kinds = 1 + (np.diff(ordered, axis=1) != 0).sum(1)
    whole = (own == np.round(own)).all(1)
    narrow = ordered[:, -1] - ordered[:, 0] < 3 * kinds
    suspect = whole & narrow & (kinds >= 0.2 * own.shape[1]) & (own.shape[1] >= close_look)
    medians = np.median(own, axis=1)
    means, deviations = own.mean(1), own.std(1)
    found = {}
    for i in np.flatnonzero(~suspect).tolist():
        name, median = names[i], float(medians[i])
        scale = (float(means[i]), float(deviations[i]) or 1.0) if standardise else (0.0, 1.0)
        found[name] = NumberColumn(name, median, *scale)
    return found


def encode_plain(columns: Sequence[NumberColumn], frame: pd.DataFrame) -> dict[str, Array]:
    """The blocks of columns of numbers, where the table has numbers that can be computed with.

    What is left out is encoded on its own, and says what is wrong.
    """
    by_name = {column.name: column for column in columns if not column.indicator}
    names, values = plain_values(frame, [name for name in by_name if name in frame])
    if not names:
        return {}
    own = [by_name[name] for name in names]
    medians, means, deviations = (
        np.array([getattr(column, part) for column in own])[:, None]
        for part in ("median", "mean", "deviation")
    )
    filled = np.where(np.isfinite(values), values, medians)
    with np.errstate(over="ignore", invalid="ignore"):
        blocks = (filled - means) / deviations
    good = (np.abs(filled) < HUGE).all(1) & (np.abs(blocks) < HUGE).all(1)
    single = blocks[good].astype(np.float32)
    kept = np.flatnonzero(good).tolist()
    return {names[i]: single[place][:, None] for place, i in enumerate(kept)}
