"""Some clients' rows of a table, read without keeping those of the others.

What is learnt from the whole table (its columns, its classes, the scale of its target) is known
before; a client's split depends on its own rows alone. So these clients are, to the bit, those
of the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.data.build import build
from fedkin.data.clients import ClientData
from fedkin.data.columns import as_numbers
from fedkin.data.config import DataConfig
from fedkin.data.facts import with_facts
from fedkin.data.partition import Array
from fedkin.data.places import given
from fedkin.data.pool import Encoded, Pool
from fedkin.data.preparation import Preparation
from fedkin.data.separators import separators
from fedkin.data.tables import client_column, target_column
from fedkin.errors import FedkinError

if TYPE_CHECKING:
    import pandas as pd

# rows of a CSV file that are in memory at once
CHUNK = 20_000
# settings with which a client's rows depend on other clients'
COMMON = ("folds", "common_test", "unseen", "group_column", "time_column")


@dataclass(frozen=True)
class Kinds:
    """A table's client and target column, and the type of every column in the whole table.

    A part of a column may look like another type: numbers only, in a column with words.
    """

    client: str
    target: str
    types: Mapping[str, str]


def kinds_of(frame: pd.DataFrame, config: DataConfig) -> Kinds | None:
    """What must be known of a whole table to read some rows of it; None: it is read whole."""
    from pandas.api import types

    shifted = (config.rotation_groups or 1) > 1 or (config.label_groups or 1) > 1
    if shifted or config.partition not in (None, "column"):
        return None
    if any(getattr(config, name) for name in COMMON) or not given(config.path or "").is_file():
        return None
    where = f"table '{config.path}'"
    client, target = client_column(frame, config, where), target_column(frame, config, where)
    if client is None or target is None or not all(isinstance(c, str) for c in frame.columns):
        return None
    words = [c for c, kind in frame.dtypes.items() if types.is_object_dtype(kind)]
    if config.name == "csv" and any(types.infer_dtype(frame[c]) != "string" for c in words):
        return None  # truth values with gaps: as words they would be spelt differently
    return Kinds(client, target, {str(c): str(kind) for c, kind in frame.dtypes.items()})


def load_rows(
    config: DataConfig, seed: int, known: ClientData, first: int, last: int, kinds: Kinds
) -> ClientData:
    """Clients first .. last-1 of a table that is `known` but for its examples."""
    import pandas as pd

    where, names = f"table '{config.path}'", known.names[first:last]
    place = {name: i for i, name in enumerate(names)}
    frames, owners = [], []
    for frame, owner in _pieces(config, kinds, place):
        frames.append(frame)
        owners.append(owner)
    if not frames:
        raise FedkinError(f"{where} has changed while it was read: clients are gone")
    frame = pd.concat(frames, ignore_index=True)
    columns = known.preparation.columns
    assert columns is not None
    inputs = Preparation(columns)
    pool = Pool(
        lambda train: Encoded(inputs.encode(frame, where), columns, []),
        _target(frame[kinds.target], known, where),
        known.num_classes,
        known.class_names,
        np.concatenate(owners),
        names,
        target_scale=known.preparation.target,
    )
    own = config.model_copy(update={"num_clients": None, "partition": "column"})
    return with_facts(build(pool, own, seed), own)


def _pieces(
    config: DataConfig, kinds: Kinds, place: Mapping[str, int]
) -> Iterator[tuple[pd.DataFrame, Array]]:
    """The rows of these clients, piece by piece, with the place of each row's client."""
    assert config.path is not None
    path = given(config.path)
    read = _of_csv if config.name == "csv" else _of_parquet
    for clients, rest in read(path, kinds):
        kept = clients.map({v: place.get(str(v), -1) for v in clients.unique()}).to_numpy(np.int64)
        if (kept >= 0).any():
            frame = rest()
            yield frame[kept >= 0], kept[kept >= 0]


def _of_csv(path: Path, kinds: Kinds) -> Iterator[tuple[pd.Series[Any], Any]]:
    import pandas as pd

    types: Any = {c: "str" if kind == "object" else kind for c, kind in kinds.types.items()}
    how = {"chunksize": CHUNK, "low_memory": False, **separators(path)}
    with pd.read_csv(path, dtype=types, **how) as chunks:
        for chunk in chunks:
            yield chunk[kinds.client], lambda chunk=chunk: chunk


def _of_parquet(path: Path, kinds: Kinds) -> Iterator[tuple[pd.Series[Any], Any]]:
    """Row groups; of those without a row of these clients only the client column is read."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        for group in range(file.num_row_groups):

            def rest(group: int = group) -> pd.DataFrame:
                frame = file.read_row_group(group, use_pandas_metadata=True).to_pandas()
                frame = frame.rename(columns=str).reset_index(drop=True)
                return frame.astype({c: kinds.types[c] for c in frame.columns})

            clients = file.read_row_group(group, columns=[kinds.client]).column(kinds.client)
            yield clients.to_pandas().astype(kinds.types[kinds.client]), rest


def _target(column: pd.Series[Any], known: ClientData, where: str) -> Array:
    """Targets as the whole table has them: numbers, or the classes' places."""
    numbers = as_numbers(column)
    if known.num_classes is None:
        assert numbers is not None
        return numbers
    values: Array = column.map(str).to_numpy(dtype=str) if numbers is None else numbers
    if not known.class_names:
        return values.astype(np.int64)
    places = {name: i for i, name in enumerate(known.class_names)}
    kinds, inverse = np.unique(values, return_inverse=True)
    found = [places.get(str(k), places.get(_whole(k), -1)) for k in kinds]
    if min(found) < 0:
        raise FedkinError(f"{where} has changed while it was read: there are new classes")
    labels: Array = np.array(found, np.int64)[inverse]
    return labels


def _whole(kind: Any) -> str:
    """How a class is named that is a whole number, as all classes of its table are."""
    return str(int(kind)) if isinstance(kind, float) and kind == int(kind) else str(kind)
