"""How the columns of a table become numbers; each form can be repeated on new data."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedkin.data.partition import Array
from fedkin.errors import FedkinError

if TYPE_CHECKING:
    import pandas as pd

HUGE = 1e30  # float32 ends a little above
DAY = 86400.0
YEAR = 365.2425 * DAY
# how dates are written, tried in this order; a format must read every value
DATE_FORMATS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y/%m/%d", "%d.%m.%Y",
    "%d.%m.%Y %H:%M", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y",
)  # fmt: skip


@dataclass(frozen=True)
class NumberColumn:
    """Missing values become the training median; then mean 0 and deviation 1.

    With `indicator` a second column is 1 where the value is missing.
    """

    kind: ClassVar[str] = "number"
    name: str
    median: float
    mean: float = 0.0
    deviation: float = 1.0
    indicator: bool = False

    @property
    def width(self) -> int:
        return 1 + self.indicator

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
        return _beside(block, ~np.isfinite(values) if self.indicator else None)


@dataclass(frozen=True)
class CategoryColumn:
    """Missing values become the commonest; then one column of 0/1 per category.

    With `other` one more column stands for all values that are rare, or unknown to training;
    with `indicator` missing values are no category, and the last column is 1 for them.
    """

    kind: ClassVar[str] = "category"
    name: str
    values: Sequence[str]
    commonest: str
    other: bool = False
    indicator: bool = False

    @property
    def width(self) -> int:
        return len(self.values) + self.other + self.indicator

    def block(self, column: pd.Series[Any], where: str) -> Array:
        codes, missing = self.codes(column), column.isna().to_numpy()
        if self.other:
            codes = np.where(codes < 0, len(self.values), codes)
        block: Array = codes[:, None] == np.arange(len(self.values) + self.other)
        if not self.indicator:
            return _beside(block, None)
        return _beside(block & ~missing[:, None], missing)

    def codes(self, column: pd.Series[Any]) -> Array:
        """The number of each row's category; -1 for one that is rare or not in training."""
        import pandas as pd  # here: importing it takes a second

        words = column.map(str).to_numpy(dtype=object)
        words[column.isna().to_numpy()] = self.commonest
        codes: Array = pd.Index(list(self.values)).get_indexer(words)
        return codes


@dataclass(frozen=True)
class DateColumn:
    """A date as its parts: the time itself (mean 0, deviation 1), and the season, the day of the
    week and, where times of day differ, the hour, each as a point on a circle.

    Missing values become the training median.
    """

    kind: ClassVar[str] = "date"
    name: str
    format: str | None
    median: float
    mean: float
    deviation: float
    hours: bool = False

    @property
    def width(self) -> int:
        return 1 + 2 * len(self.periods)

    @property
    def periods(self) -> tuple[float, ...]:
        return (YEAR, 7 * DAY, DAY) if self.hours else (YEAR, 7 * DAY)

    def block(self, column: pd.Series[Any], where: str) -> Array:
        seconds = as_seconds(column, self.format)
        filled = np.where(np.isfinite(seconds), seconds, self.median)
        parts = [(filled - self.mean) / self.deviation]
        for period in self.periods:
            angle = 2 * math.pi * (filled % period) / period
            parts += [np.sin(angle), np.cos(angle)]
        return np.stack(parts, 1).astype(np.float32)


Column = NumberColumn | CategoryColumn | DateColumn
KINDS: dict[str, type[Any]] = {c.kind: c for c in (NumberColumn, CategoryColumn, DateColumn)}


def column_from(facts: dict[str, Any]) -> Column:
    """A column from its facts; those of older files do not say their kind."""
    own = dict(facts)
    kind = own.pop("kind", "category" if "values" in own else "number")
    column: Column = KINDS[kind](**own)
    return column


def _beside(block: Array, missing: Array | None) -> Array:
    columns: Array = block[:, None] if block.ndim == 1 else block
    if missing is not None:
        columns = np.concatenate([columns, missing[:, None]], axis=1)
    single: Array = columns.astype(np.float32)
    return single


# reading -----------------------------------------------------------------------------------


def as_numbers(column: pd.Series[Any]) -> Array | None:
    """The column as floats (truth values as 0 and 1, durations as seconds), or None for words."""
    import pandas as pd
    from pandas.api import types

    if types.is_datetime64_any_dtype(column):
        return as_seconds(column, None)
    if types.is_timedelta64_dtype(column):
        seconds = column.to_numpy(dtype="timedelta64[ns]").astype(np.int64) / 1e9
        return np.where(column.isna(), np.nan, seconds)
    if column.dtype == object and column.dropna().map(lambda v: isinstance(v, Number)).all():
        column = pd.to_numeric(column, errors="coerce")  # Parquet's decimals, mixed numbers
    if types.is_numeric_dtype(column) and not types.is_complex_dtype(column):
        numbers: Array = column.to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers
    return None


def as_seconds(column: pd.Series[Any], format: str | None) -> Array:
    """Dates as seconds since 1970, UTC; NaN where there is none, or none of this format."""
    import pandas as pd

    dates = pd.to_datetime(column, format=format, errors="coerce", utc=True)
    seconds = dates.to_numpy(dtype="datetime64[ns]").astype(np.int64) / 1e9
    return np.where(dates.isna(), np.nan, seconds)


def date_format(column: pd.Series[Any]) -> tuple[str | None, bool]:
    """(the format that reads every value of a column of words, whether another does too)."""
    known = column.dropna()
    first = str(known.iloc[0]) if len(known) else ""
    if not re.search(r"\d", first) or not re.search(r"[-/. ]", first) or len(first) > 40:
        return None, False
    fits = [f for f in DATE_FORMATS if np.isfinite(as_seconds(known, f)).all()]
    return (fits[0], len(fits) > 1) if fits else (None, False)
