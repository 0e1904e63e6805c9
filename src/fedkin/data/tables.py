"""Tables (CSV, Parquet): one row per sample, a client column, a target column, features."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.data.columns import HUGE, as_numbers, as_seconds, date_format
from fedkin.data.config import DataConfig
from fedkin.data.partition import Array, Rows
from fedkin.data.places import given
from fedkin.data.pool import Encoded, Pool, encode_labels
from fedkin.data.preparation import Preparation, learn_columns
from fedkin.data.separators import header, separators
from fedkin.errors import FedkinError, unknown

if TYPE_CHECKING:
    import pandas as pd

CLIENT_NAMES = ("client", "client_id")
WIDE = 1000  # columns
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
TARGET_NAMES = ("target", "label", "y")


def read_table(config: DataConfig, rng: np.random.Generator) -> Pool:
    """A CSV or Parquet file as samples; features are encoded once the training rows are known."""
    frame = read_frame(config, dtype=as_written(config.client_column))
    return table_pool(frame, config, f"table '{config.path}'")


def as_written(client_column: str | None) -> dict[str, type[str]]:
    """pandas' option that reads clients' names as text: 01, 1 and 1.0 are three clients."""
    return dict.fromkeys((client_column,) if client_column else CLIENT_NAMES, str)


def read_frame(config: DataConfig, **csv: Any) -> pd.DataFrame:
    """A CSV or Parquet file as it is; `csv` are pandas' options of how to read one."""
    if config.path is None:
        raise FedkinError(f"data '{config.name}' need a file: set path")
    return read_file(config.path, config.name, **csv)


def read_file(name: str, kind: str | None, **csv: Any) -> pd.DataFrame:
    """A file of kind csv or parquet as it is."""
    import pandas as pd  # here: importing it takes a second

    path = given(name)
    try:
        frame = _read_csv(path, **csv) if kind == "csv" else pd.read_parquet(path)
        # a copy lays columns of a kind side by side: without it every step takes each by itself
        return frame.copy() if len(frame.columns) > WIDE else frame
    except Exception as error:  # parsers, decoders and decompressors fail in many ways
        reason = str(error).strip().split("\n")[0]
        shown = "CSV" if kind == "csv" else "Parquet"
        raise FedkinError(f"'{name}' cannot be read as {shown} ({reason})") from None


def _read_csv(path: Path, dtype: Mapping[str, type] | None = None, **csv: Any) -> pd.DataFrame:
    """A CSV file, some columns as types that are given."""
    import pandas as pd

    csv = {**separators(path), "low_memory": False, **csv}
    if dtype is None or len(header(path, csv.get("sep", ","))) <= WIDE:
        return pd.read_csv(path, dtype=dtype, **csv)
    # given types, pandas makes an object of every column: a second look at a wide table is faster
    frame = pd.read_csv(path, **csv)
    if not isinstance(frame.index, pd.RangeIndex):  # a column without a name, not seen by a look
        return pd.read_csv(path, dtype=dtype, **csv)
    typed = pd.read_csv(path, usecols=lambda name: name in dtype, dtype=dtype, **csv)
    return frame.assign(**{name: typed[name] for name in dtype if name in frame})


def table_pool(frame: pd.DataFrame, config: DataConfig, where: str) -> Pool:
    """Target and clients of a table, its features left to `_encode` at the right moment."""
    frame = frame.rename(columns=str).reset_index(drop=True)
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise FedkinError(f"{where} has two columns '{twice}'; rename one")
    target = target_column(frame, config, where)
    if target is None:
        raise FedkinError(
            f"{where} has no column named target, label or y; say which of "
            f"{_listed(frame)} is to be predicted with target_column"
        )
    client = client_column(frame, config, where)
    if client == target:
        raise FedkinError(f"column '{target}' of {where} cannot be both client and target")
    if client is None and config.partition in (None, "column"):
        raise FedkinError(
            f"{where} has no column named client; say which of {_listed(frame)} names the client "
            "with client_column, or choose a partition such as iid"
        )
    if len(frame) == 0:
        raise FedkinError(f"{where} has no rows")
    y, classes, class_names = _target(frame[target], config, where)
    others = {
        kind: _column(frame, name, (), kind, where)
        for kind, name in (("group", config.group_column), ("time", config.time_column))
    }
    features = _features(frame, config, [target, client, *others.values()], where)
    frame_x, numbers = frame[features], None
    if client is not None:
        numbers, names = _clients(frame[client], where)
    pool = Pool(
        lambda train: _encode(frame_x, train, config, where, numbers),
        y,
        classes,
        class_names,
    )
    if numbers is not None:
        pool.clients, pool.client_names = numbers, names
    if others["group"] is not None:
        pool.people = np.unique(frame[others["group"]].map(str), return_inverse=True)[1]
    if others["time"] is not None:
        pool.times = _times(frame[others["time"]], where)
    return pool


def target_column(frame: pd.DataFrame, config: DataConfig, where: str) -> str | None:
    """The column to be predicted: the one named, or one with a usual name."""
    return _column(frame, config.target_column, TARGET_NAMES, "target", where)


def client_column(frame: pd.DataFrame, config: DataConfig, where: str) -> str | None:
    """The column that names each row's client: the one named, or one with a usual name."""
    return _column(frame, config.client_column, CLIENT_NAMES, "client", where)


def _features(
    frame: pd.DataFrame, config: DataConfig, taken: Sequence[str | None], where: str
) -> list[str]:
    """The columns that models see: those named, or all but those left out."""
    for name in (*config.features, *config.drop_columns):
        if name not in frame.columns:
            raise FedkinError(f"{unknown('column', name, frame.columns)} in {where}")
    twice = next((name for name in config.features if name in taken[:2]), None)
    if twice is not None:
        raise FedkinError(f"column '{twice}' of {where} is the client or the target: no feature")
    found = [c for c in (config.features or frame.columns) if c not in config.drop_columns]
    if not config.features:
        found = [c for c in found if c not in taken]
    if not found:
        raise FedkinError(f"{where} has no feature columns beside target and client")
    return list(dict.fromkeys(found))


def _times(column: pd.Series[Any], where: str) -> Array:
    """When each row was: dates or numbers, the later the larger."""
    values = as_numbers(column)
    if values is None:
        format, _ = date_format(column)
        values = None if format is None else as_seconds(column, format)
    if values is None or not np.isfinite(values).all():
        raise FedkinError(
            f"time column '{column.name}' of {where} is not a number or date in every row"
        )
    return values


def _column(
    frame: pd.DataFrame, name: str | None, usual: tuple[str, ...], kind: str, where: str
) -> str | None:
    if name is None:
        return next((c for c in usual if c in frame.columns), None)
    if name not in frame.columns:
        raise FedkinError(f"{unknown(f'{kind} column', name, frame.columns)} in {where}")
    return name


def _clients(column: pd.Series[Any], where: str) -> tuple[Rows, tuple[str, ...]]:
    """Each row's client number, and the clients' names in sorted order.

    Names that are all plain numbers come in the order of numbers.
    """
    if column.isna().any():
        row = int(np.flatnonzero(column.isna())[0]) + 1
        raise FedkinError(f"row {row} of {where} has no client in column '{column.name}'; fill it")
    values = column if column.dtype.kind in "iuf" else column.map(str)
    kinds, numbers = np.unique(values.to_numpy(), return_inverse=True)
    if kinds.dtype.kind not in "iuf" and all(WHOLE.fullmatch(name) for name in kinds):
        order = sorted(range(len(kinds)), key=lambda at: int(kinds[at]))
        kinds, numbers = kinds[order], np.argsort(order)[numbers]
    if len(kinds) == 1:
        raise FedkinError(
            f"{where} has a single client '{kinds[0]}' in column '{column.name}'; personal models "
            "need two clients or more"
        )
    return numbers.astype(np.int64), tuple(str(k) for k in kinds)


def _target(
    column: pd.Series[Any], config: DataConfig, where: str
) -> tuple[Array, int | None, tuple[str, ...]]:
    name = f"target '{column.name}' of {where}"
    numeric = as_numbers(column)
    bad = column.isna().to_numpy() if numeric is None else ~np.isfinite(numeric)
    if bad.any():
        row = int(np.flatnonzero(bad)[0]) + 1
        raise FedkinError(
            f"{name} is missing or infinite in {int(bad.sum())} rows (first: row {row}); "
            "fill or drop them"
        )
    values: Array = column.map(str).to_numpy(dtype=str) if numeric is None else numeric
    if (values == values[0]).all():
        raise FedkinError(f"{name} is always {column.iloc[0]}: there is nothing to learn")
    if config.task == "regression" or (config.task == "auto" and _is_measured(values)):
        if numeric is None:
            raise FedkinError(f"{name} is not a number; set task to classification")
        if np.abs(numeric).max() >= HUGE:
            raise FedkinError(f"{name} has values beyond 1e30; use a smaller unit")
        return numeric, None, ()
    whole = numeric is not None and (numeric == np.round(numeric)).all()
    if whole and np.abs(values).max() < 2**53:
        values = values.astype(np.int64)
    return encode_labels(values)


def _is_measured(values: Array) -> bool:
    """Whether a target is a quantity; words and up to 20 different whole numbers are classes."""
    if values.dtype.kind != "f":
        return False
    kinds = np.unique(values)
    return len(kinds) > 20 or bool((kinds != np.round(kinds)).any())


def _encode(
    frame: pd.DataFrame, train: Rows, config: DataConfig, where: str, clients: Rows | None
) -> Encoded:
    """Features of all rows, with everything that is learnt learnt from the rows `train`."""
    columns, notes = learn_columns(
        frame, train, config.standardise is not False, clients, bool(config.features)
    )
    if not columns:
        raise FedkinError(f"{where} has no usable feature columns ({'; '.join(notes)})")
    return Encoded(Preparation(columns).encode(frame, where), columns, notes)


def _listed(frame: pd.DataFrame) -> str:
    names = [str(c) for c in frame.columns]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
