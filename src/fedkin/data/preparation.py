"""How raw samples become a model's inputs: learnt from training data, repeated on new data."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.data.columns import (
    DAY,
    HUGE,
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
    as_numbers,
    as_seconds,
    column_from,
    date_format,
)
from fedkin.data.many_columns import encode_plain, learn_plain
from fedkin.data.notes import BETWEEN, INDICATED
from fedkin.data.partition import Array, Rows
from fedkin.errors import FedkinError

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES = 100
MOST_CLOSE_LOOKS = 20_000  # columns that are not plain numbers: half a millisecond each
# values of a category that occur less often in training share one column
RARE, RARE_SHARE = 3, 0.002
# a column with so many different values, by rows, names rows; fewer rows than this say nothing
NEARLY_ALL, FEW_ROWS = 0.95, 20
ID_NAME = re.compile(r"(?i)(^|[_\W])(id|uuid|guid|key|nr|code)$|[a-z]id$|[a-z]ID$")
NO_VALUES = "left out, no values in the training data"
IDENTIFIER = "left out, looks like an identifier (to keep it, name it in features)"


@dataclass
class Preparation:
    """From raw samples to inputs: a table's columns encoded, pixels to [0, 1], then scaled.

    `target` holds the mean and deviation by which targets that are numbers were standardised.
    """

    columns: Sequence[Column] | None = None
    pixels: bool = False
    mean: Array | None = None
    deviation: Array | None = None
    unit_norm: bool = False
    target: tuple[float, float] | None = None

    def inputs(self, samples: pd.DataFrame | Array, where: str = "the data") -> Array:
        """New samples, made ready just as the training data were."""
        values = np.asarray(samples) if self.columns is None else self.encode(samples, where)
        try:
            values = values.astype(np.float32)
        except (TypeError, ValueError):
            raise FedkinError(f"{where} has words where the model takes numbers") from None
        if self.pixels:
            values /= 255
        self.scale(values)
        return values

    def encode(self, frame: Any, where: str) -> Array:
        """A table's columns as one array of features."""
        assert self.columns is not None
        missing = next((c.name for c in self.columns if c.name not in frame), None)
        if missing is not None:
            raise FedkinError(f"{where} has no column '{missing}', which the training data have")
        plain = encode_plain([c for c in self.columns if isinstance(c, NumberColumn)], frame)
        blocks = [
            plain[column.name] if column.name in plain else column.block(frame[column.name], where)
            for column in self.columns
        ]
        return np.concatenate(blocks, axis=1)

    def scaled_target(self, y: Array) -> Array:
        """Targets as a model is trained on them."""
        if self.target is not None:
            y = (y - self.target[0]) / self.target[1]
        return y.astype(np.float32)

    def learn_scale(self, x: Array) -> None:
        """Mean and deviation of every feature, from the training inputs."""
        deviation = x.std(0, dtype=np.float64)
        deviation[deviation < 1e-8] = 1.0
        self.mean = x.mean(0, dtype=np.float64).astype(np.float32)
        self.deviation = deviation.astype(np.float32)

    def scale(self, x: Array) -> None:
        """Standardise and bring to unit norm, where that was asked for, in place."""
        if self.mean is not None:
            x -= self.mean
            x /= self.deviation
        if self.unit_norm:
            flat = x.reshape(len(x), math.prod(x.shape[1:]))
            norms = np.linalg.norm(flat, axis=1, keepdims=True)
            flat /= np.where(norms > 0, norms, 1)

    # as json -----------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Everything as plain values; `from_facts` is the opposite."""
        return {
            "columns": self.columns
            and [{"kind": column.kind, **vars(column)} for column in self.columns],
            "pixels": self.pixels,
            "mean": None if self.mean is None else self.mean.tolist(),
            "deviation": None if self.deviation is None else self.deviation.tolist(),
            "unit_norm": self.unit_norm,
            "target": self.target,
        }

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Preparation:
        columns = facts["columns"]
        return cls(
            columns and [column_from(c) for c in columns],
            facts["pixels"],
            None if facts["mean"] is None else np.array(facts["mean"], np.float32),
            None if facts["deviation"] is None else np.array(facts["deviation"], np.float32),
            facts["unit_norm"],
            None if facts.get("target") is None else tuple(facts["target"]),
        )


def learn_target(y: Array) -> tuple[float, float]:
    """Mean and deviation of targets that are numbers, from the training data."""
    return float(y.mean(dtype=np.float64)), float(y.std(dtype=np.float64)) or 1.0


def learn_columns(
    frame: pd.DataFrame,
    train: Rows,
    standardise: bool,
    clients: Rows | None = None,
    wanted: bool = False,
) -> tuple[list[Column], list[str]]:
    """How each feature column is encoded, from the rows `train`; notes on what was noticed.

    `clients` numbers each row's client, `wanted` says that the user chose these columns.
    """
    columns: list[Column] = []
    notes = []
    plain = learn_plain(frame, train, standardise, FEW_ROWS)
    if len(frame.columns) - len(plain) > MOST_CLOSE_LOOKS:
        raise FedkinError(
            f"the table has {len(frame.columns) - len(plain)} columns of words, dates, missing "
            f"values or identifiers, and each takes a closer look: at most {MOST_CLOSE_LOOKS} can "
            "be used, so name those in features"
        )
    for name in frame.columns:
        if name in plain and (wanted or not ID_NAME.search(name)):
            columns.append(plain[name])
            continue
        column, note = learn_column(frame[name], train, standardise, clients, wanted)
        if column is not None:
            columns.append(column)
        if note:
            notes.append(f"column '{name}': {note}")
    return columns, notes


def learn_column(
    values: pd.Series[Any], train: Rows, standardise: bool, clients: Rows | None, wanted: bool
) -> tuple[Column | None, str]:
    """How one column is encoded, and what was noticed; None: it is left out."""
    from pandas.api import types

    name, own = str(values.name), values.iloc[train]
    numbers = as_numbers(values)
    if types.is_datetime64_any_dtype(values):
        return _learn_dates(name, values, train, None, "")
    format, ambiguous = date_format(own) if numbers is None else (None, False)
    if format is not None:
        note = f"read as dates ({format})" + (
            ", which may be the wrong order of day and month" if ambiguous else ""
        )
        return _learn_dates(name, values, train, format, note)
    if not wanted and looks_like_identifier(own, None if numbers is None else numbers[train]):
        return None, IDENTIFIER
    if numbers is not None:
        differs = _missing_differs(~np.isfinite(numbers[train]), clients, train)
        return _learn_numbers(name, numbers, train, standardise, differs)
    differs = _missing_differs(own.isna().to_numpy(), clients, train)
    return _learn_categories(name, values, train, differs, wanted)


def looks_like_identifier(column: pd.Series[Any], numbers: Array | None) -> bool:
    """Whether a column names rows or people rather than describing them.

    Words or whole numbers with nearly as many values as rows; a running number; numbers that
    come in blocks, one block each, as where several rows of a person follow each other; or a
    name such as childid with many values.
    """
    n = len(column)
    if n < FEW_ROWS:
        return False
    if numbers is not None:
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers) or (numbers != np.round(numbers)).any():
            return False
        kinds = np.unique(numbers)
    else:
        kinds = column.dropna().unique()
    share = len(kinds) / n
    if ID_NAME.search(str(column.name)) and len(kinds) >= max(FEW_ROWS, 0.05 * n):
        return True
    if numbers is None:
        return share >= NEARLY_ALL
    consecutive = kinds[-1] - kinds[0] < 3 * len(kinds)
    blocks = 1 + int((np.diff(numbers) != 0).sum())
    return bool(consecutive and (share >= NEARLY_ALL or (share >= 0.2 and blocks == len(kinds))))


def _missing_differs(missing: Array, clients: Rows | None, train: Rows) -> bool:
    """Whether values are missing at some clients more than at others (chi-squared, 1 %)."""
    from scipy.special import chdtrc  # imported here, as importing it takes long

    if clients is None or missing.sum() < 5 or missing.all():
        return False
    own = clients[train]
    total = np.bincount(own)
    gone = np.bincount(own, missing, minlength=len(total))[total > 0]
    total = total[total > 0]
    if len(total) < 2:
        return False
    share = missing.mean()
    statistic = ((gone - total * share) ** 2 / (total * share * (1 - share))).sum()
    return bool(chdtrc(len(total) - 1, statistic) < 0.01)


def _learn_numbers(
    name: str, values: Array, train: Rows, standardise: bool, indicator: bool
) -> tuple[Column | None, str]:
    missing = ~np.isfinite(values)
    known = values[train][~missing[train]]
    if len(known) == 0:
        return None, NO_VALUES
    note = ""
    if missing.any():
        note = f"{int(missing.sum())} missing values became the training median"
        note += f" and {INDICATED}" if indicator else ""
    median = float(np.median(known))
    filled = np.where(missing, median, values)
    if not standardise or np.abs(filled).max() >= HUGE:  # refused when it is encoded
        return NumberColumn(name, median, indicator=indicator), note
    mean, deviation = float(filled[train].mean()), float(filled[train].std()) or 1.0
    return NumberColumn(name, median, mean, deviation, indicator), note


def _learn_dates(
    name: str, values: pd.Series[Any], train: Rows, format: str | None, note: str
) -> tuple[Column | None, str]:
    seconds = as_seconds(values, format)
    known = seconds[train][np.isfinite(seconds[train])]
    if len(known) == 0:
        return None, NO_VALUES
    median, missing = float(np.median(known)), int((~np.isfinite(seconds)).sum())
    filled = np.where(np.isfinite(seconds[train]), seconds[train], median)
    hours = bool((known % DAY != known[0] % DAY).any())
    if missing:
        note += f"{BETWEEN if note else ''}{missing} missing values became the training median"
    scale = float(filled.mean()), float(filled.std()) or 1.0
    return DateColumn(name, format, median, *scale, hours), note


def _learn_categories(
    name: str, column: pd.Series[Any], train: Rows, indicator: bool, wanted: bool
) -> tuple[Column | None, str]:
    missing = column.isna().to_numpy()
    words = column.map(str).to_numpy(dtype=object)
    kinds, counts = np.unique(words[train][~missing[train]].astype(str), return_counts=True)
    if len(kinds) == 0:
        return None, NO_VALUES
    rare = counts < max(RARE, counts.sum() * RARE_SHARE)
    if rare.sum() < 2 or rare.all():
        rare = np.zeros(len(kinds), dtype=bool)
    if (~rare).sum() > MOST_CATEGORIES:
        rare[np.argsort(-counts, kind="stable")[MOST_CATEGORIES:]] = True
    if len(kinds) > MOST_CATEGORIES and counts[rare].sum() > counts.sum() / 2 and not wanted:
        return None, f"left out, {len(kinds)} different values, most of them rare"
    commonest = str(kinds[counts.argmax()])
    other = bool(rare.any())
    learnt = CategoryColumn(name, kinds[~rare].tolist(), commonest, other, indicator)
    notes = []
    if missing.any() and indicator:
        notes.append(f"{int(missing.sum())} missing values {INDICATED}")
    elif missing.any():
        notes.append(f"{int(missing.sum())} missing values became the commonest one in training")
    if rare.any():
        notes.append(f"{int(rare.sum())} rare values share one column")
    unseen = int((~np.isin(words[~missing].astype(str), kinds)).sum())
    if unseen:
        became = "are counted among the rare ones" if other else "became no value"
        notes.append(f"{unseen} values do not occur in training and {became}")
    return learnt, BETWEEN.join(notes)
