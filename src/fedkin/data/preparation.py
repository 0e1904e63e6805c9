"""How raw samples become a model's inputs: learnt from training data, repeated on new data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.data.partition import Array, Rows
from fedkin.errors import FedkinError

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES = 100
HUGE = 1e30  # float32 ends a little above
NO_VALUES = "left out, it has no values in the training data"


@dataclass(frozen=True)
class NumberColumn:
    """Missing values become the training median; then mean 0 and deviation 1."""

    name: str
    median: float
    mean: float = 0.0
    deviation: float = 1.0

    def block(self, column: pd.Series[Any], where: str) -> Array:
        values = as_numbers(column)
        if values is None:
            raise FedkinError(
                f"column '{self.name}' of {where} has words, but numbers in the training data"
            )
        filled = np.where(np.isfinite(values), values, self.median)
        block = (filled - self.mean) / self.deviation
        if not (np.abs(filled) < HUGE).all() or not (np.abs(block) < HUGE).all():
            raise FedkinError(
                f"column '{self.name}' of {where} has values too large to compute with; "
                "use a smaller unit"
            )
        return block.astype(np.float32)[:, None]


@dataclass(frozen=True)
class CategoryColumn:
    """Missing values become the commonest; then one column of 0/1 per category."""

    name: str
    values: Sequence[str]
    commonest: str

    def block(self, column: pd.Series[Any], where: str) -> Array:
        block: Array = self.codes(column)[:, None] == np.arange(len(self.values))
        return block.astype(np.float32)

    def codes(self, column: pd.Series[Any]) -> Array:
        """The number of each row's category; -1 for one that training never saw."""
        import pandas as pd  # here: importing it takes a second

        words = column.map(str).to_numpy(dtype=object)
        words[column.isna().to_numpy()] = self.commonest
        codes: Array = pd.Index(list(self.values)).get_indexer(words)
        return codes


Column = NumberColumn | CategoryColumn


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
        values = values.astype(np.float32)
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
        blocks = [column.block(frame[column.name], where) for column in self.columns]
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
            "columns": self.columns and [asdict(column) for column in self.columns],
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
            columns and [(CategoryColumn if "values" in c else NumberColumn)(**c) for c in columns],
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
    frame: pd.DataFrame, train: Rows, standardise: bool
) -> tuple[list[Column], list[str]]:
    """How each feature column is encoded, from the rows `train`; notes on what was noticed."""
    columns: list[Column] = []
    notes = []
    for name in frame.columns:
        numbers = as_numbers(frame[name])
        column, note = (
            _learn_numbers(name, numbers, train, standardise)
            if numbers is not None
            else _learn_categories(name, frame[name], train)
        )
        if column is not None:
            columns.append(column)
        if note:
            notes.append(f"column '{name}': {note}")
    return columns, notes


def _learn_numbers(
    name: str, values: Array, train: Rows, standardise: bool
) -> tuple[Column | None, str]:
    missing = ~np.isfinite(values)
    known = values[train][~missing[train]]
    if len(known) == 0:
        return None, NO_VALUES
    note = (
        f"{int(missing.sum())} missing values became the training median" if missing.any() else ""
    )
    median = float(np.median(known))
    filled = np.where(missing, median, values)
    if not standardise or np.abs(filled).max() >= HUGE:  # refused when it is encoded
        return NumberColumn(name, median), note
    deviation = float(filled[train].std())
    return NumberColumn(name, median, float(filled[train].mean()), deviation or 1.0), note


def _learn_categories(name: str, column: pd.Series[Any], train: Rows) -> tuple[Column | None, str]:
    missing = column.isna().to_numpy()
    words = column.map(str).to_numpy(dtype=object)
    kinds, counts = np.unique(words[train][~missing[train]].astype(str), return_counts=True)
    if len(kinds) == 0:
        return None, NO_VALUES
    if len(kinds) > MOST_CATEGORIES:
        return None, f"left out, it has {len(kinds)} different values and looks like an identifier"
    learnt = CategoryColumn(name, kinds.tolist(), str(kinds[counts.argmax()]))
    notes = []
    if missing.any():
        notes.append(f"{int(missing.sum())} missing values became the commonest one in training")
    unseen = int((learnt.codes(column) < 0).sum())
    if unseen:
        notes.append(f"{unseen} values do not occur in training and became no value")
    return learnt, " and ".join(notes)


def as_numbers(column: pd.Series[Any]) -> Array | None:
    """The column as floats (truth values as 0 and 1, dates as seconds), or None for words."""
    import pandas as pd
    from pandas.api import types

    for kind, is_kind in (
        ("datetime64[ns]", types.is_datetime64_any_dtype),
        ("timedelta64[ns]", types.is_timedelta64_dtype),
    ):
        if is_kind(column):
            seconds = column.to_numpy(dtype=kind).astype(np.int64) / 1e9
            return np.where(column.isna(), np.nan, seconds)
    if column.dtype == object and column.dropna().map(lambda v: isinstance(v, Number)).all():
        column = pd.to_numeric(column, errors="coerce")  # Parquet's decimals, mixed numbers
    if types.is_numeric_dtype(column) and not types.is_complex_dtype(column):
        numbers: Array = column.to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers
    return None
