"""Facts about clients, from a table with a row for each: what its device can carry, its region."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedkin.data.clients import ClientData
from fedkin.data.config import SUFFIXES, DataConfig
from fedkin.data.tables import CLIENT_NAMES, as_written, read_file
from fedkin.errors import FedkinError

if TYPE_CHECKING:
    import pandas as pd


def with_facts(data: ClientData, config: DataConfig) -> ClientData:
    """The clients with the columns of their table, where the config names one."""
    if config.client_table is None:
        return data
    where, frame = f"client table '{config.client_table}'", read_client_table(config)
    rows = frame.index.value_counts()
    for name in data.names:
        if rows.get(name) != 1:
            raise FedkinError(f"{where} has {rows.get(name, 0)} rows for client '{name}'; give one")
    own = frame.loc[list(data.names)]
    return replace(data, columns={str(c): own[c].tolist() for c in own.columns})


def read_client_table(config: DataConfig) -> pd.DataFrame:
    """The table with a row for each client, by the clients' names."""
    assert config.client_table is not None
    where = f"client table '{config.client_table}'"
    kind = SUFFIXES.get(Path(config.client_table).suffix.lower())
    if kind not in ("csv", "parquet"):
        raise FedkinError(f"{where} is not a .csv or .parquet file")
    words = {**as_written(None), **as_written(config.client_column)}
    frame = read_file(config.client_table, kind, dtype=words).rename(columns=str)
    usual = [c for c in (config.client_column, *CLIENT_NAMES) if c]
    client = next((c for c in usual if c in frame.columns), None)
    if client is None:
        raise FedkinError(f"{where} has no column named {usual[0]} that names the clients")
    frame.index = frame.pop(client).map(str)
    return frame
