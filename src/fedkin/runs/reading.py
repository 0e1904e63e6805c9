"""Files of a run folder, read as if a stranger had written them.

Whatever is in a file, its size is bounded before anything is allocated for it, its content is
checked before it is used, and an error is a sentence that names the file and what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from pydantic import TypeAdapter, ValidationError

from fedkin.errors import FedkinError, checked_size
from fedkin.runs.validation import sentence

Content = TypeVar("Content")

# bytes of a file of text and of a table; columns of a table
LONGEST_TEXT, LARGEST_TABLE, MOST_COLUMNS = 2**28, 2**33, 10**6
HUGE = 1e100  # what is larger cannot be drawn, and is infinite for all we do with it
LAST_ROUND = 10**9


def read_text(path: Path) -> str:
    """A file of text; a FileNotFoundError if there is none."""
    checked_size(path, LONGEST_TEXT)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FedkinError(f"{path} is damaged: it is not text in UTF-8") from None


def read_json(path: Path, form: TypeAdapter[Content]) -> Content:
    """A json file whose content has this form; a FileNotFoundError if there is none."""
    return from_json(read_text(path), form, str(path))


def from_json(text: str, form: TypeAdapter[Content], where: str) -> Content:
    """Text as json whose content has this form."""
    try:
        return form.validate_json(text)
    except ValidationError as error:
        raise sentence(form, error, where) from None


# tables ----------------------------------------------------------------------------------


def parts_of(path: Path) -> list[Path]:
    """The files with the earlier rows of a csv file, in order: see `parts.py`."""
    return sorted(path.parent.glob(f"{path.stem}.[0-9]*.parquet"))


def read_table(
    path: Path,
    needs: Iterable[str] = (),
    by_round: bool = False,
    words: Sequence[str] = ("client",),
) -> pd.DataFrame:
    """A table of a run folder by the name of its csv file, empty if there is none.

    An empty cell is not known. All columns but `words` are numbers. `needs` are columns it must
    have. Where rounds come first they do not fall; `by_round`: they rise. A last row that is not
    whole is being written, or was when the process was killed: it is left out.
    """
    table, earlier = read_rows(path, words), [read_rows(part, words) for part in parts_of(path)]
    if earlier:
        for part in earlier:
            if "round" not in part or part.empty:
                raise FedkinError(f"{path} is damaged: one of its parts has no rounds")
        if len(table):
            if "round" not in table:
                raise FedkinError(f"{path} is damaged: it has no column 'round'")
            table = table[table["round"] > earlier[-1]["round"].iloc[-1]]
        table = pd.concat([*earlier, table] if len(table) else earlier, ignore_index=True)
    missing = next((name for name in needs if name not in table), None)
    if missing is not None and len(table):
        raise FedkinError(f"{path} is damaged: it has no column '{missing}'")
    if len(table.columns) and table.columns[0] == "round":
        _check_rounds(table["round"], path, by_round)
    return table


def read_rows(path: Path, words: Sequence[str] = ("client",)) -> pd.DataFrame:
    """One file of a table, csv or parquet; empty if there is none."""
    try:
        checked_size(path, LARGEST_TABLE)
        table = _parquet(path) if path.suffix == ".parquet" else _csv(path, words)
    except FileNotFoundError:
        return pd.DataFrame()
    if not isinstance(table.index, pd.RangeIndex):
        raise FedkinError(f"{path} is damaged: it has rows with more cells than columns")
    for name in table.columns:
        own = table[name]
        checked = _names(own, path) if name in words else _numbers(own, path)
        if checked is not own:
            table[name] = checked
    return table


def _csv(path: Path, words: Sequence[str]) -> pd.DataFrame:
    whole = _check_ends(path)
    try:
        table = pd.read_csv(
            path, dtype=dict.fromkeys(words, str), keep_default_na=False, na_values=[""]
        )
    except (ValueError, OverflowError) as error:  # pandas' own, and bad UTF-8, are ValueErrors
        raise FedkinError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    return table if whole else table.iloc[:-1]


def _parquet(path: Path) -> pd.DataFrame:
    from pyarrow import parquet  # here: not every run has parts

    try:
        file = parquet.ParquetFile(path)
        facts = file.metadata
        size = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
        if facts.num_columns > MOST_COLUMNS or max(size, 8 * facts.num_rows) > LARGEST_TABLE:
            raise FedkinError(f"{path} is damaged: it is larger than a table can be")
        return file.read().to_pandas(ignore_metadata=True)
    except FedkinError:
        raise
    except Exception as error:  # decoders and decompressors fail in many ways
        reason = (str(error).splitlines() or [""])[0]
        raise FedkinError(f"{path} cannot be read: {reason[:200]}") from None


def _check_ends(path: Path) -> bool:
    """Refuse a header no run writes; whether the last row is whole."""
    with path.open("rb") as file:
        header = file.readline(LONGEST_TEXT)
        if header.count(b",") >= MOST_COLUMNS:
            raise FedkinError(f"{path} is damaged: it has more than {MOST_COLUMNS} columns")
        file.seek(-1 if header else 0, 2)
        return file.read(1) in (b"\n", b"")


def _names(column: pd.Series[Any], path: Path) -> pd.Series[Any]:
    if column.isna().any():
        row = int(np.flatnonzero(column.isna())[0]) + 1
        raise FedkinError(f"{path} is damaged: column '{column.name}' is empty in row {row}")
    return column


def _numbers(column: pd.Series[Any], path: Path) -> pd.Series[Any]:
    """A column of numbers, and nothing else; those beyond any scale are infinite."""
    shown = str(column.name)[:60]
    if column.isna().all():  # also of no rows
        return column if is_numeric_dtype(column) else column.astype(np.float64)
    if not is_numeric_dtype(column) or is_bool_dtype(column):
        numbers = pd.to_numeric(column, errors="coerce")
        strange = column[numbers.isna() & column.notna()]
        example = str(strange.iloc[0] if len(strange) else column.iloc[0])[:60]
        raise FedkinError(
            f"{path} is damaged: column '{shown}' has '{example}' where numbers belong"
        )
    values = column.to_numpy(np.float64, na_value=np.nan)
    wild = np.isfinite(values) & (np.abs(values) > HUGE)
    return column.mask(wild, np.sign(values) * np.inf) if wild.any() else column


def _check_rounds(rounds: pd.Series[Any], path: Path, by_round: bool) -> None:
    values = rounds.to_numpy(np.float64, na_value=np.nan)
    good = (values >= 0) & (values <= LAST_ROUND) & (values == np.floor(values))
    rising = np.diff(values, prepend=-1.0) >= (1 if by_round else 0)
    if not bool((good & rising).all()):
        row = int(np.flatnonzero(~(good & rising))[0])
        raise FedkinError(
            f"{path} is damaged: the round in row {row + 1} is {values[row]:g}, and rounds are "
            f"whole numbers that {'rise' if by_round else 'do not fall'}"
        )
