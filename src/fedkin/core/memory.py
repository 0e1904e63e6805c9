"""What clients remember between rounds: one table per name, one row per client.

Tables live in RAM; beyond a budget they live in files, of which only the rows being
worked on are ever read.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.tensors import Chunked, Stored, read_all, write_all

CHUNK_BYTES = 1 << 24
# a table of rows, in a file or in memory
Rows = Stored | Tensor


class Budget:
    """Bytes that may be held in RAM, shared by all who ask for some; None: without end."""

    def __init__(self, size: int | None = None) -> None:
        self.left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Whether there was room; if so it is taken."""
        with self._lock:
            if self.left is None:
                return True
            room = size <= self.left
            self.left -= size if room else 0
            return room


class RamTable:
    """Rows [N, ...] in one tensor."""

    def __init__(self, num_clients: int, row: Tensor) -> None:
        self.values = torch.zeros(num_clients, *row.shape, dtype=row.dtype)

    def read(self, clients: Tensor) -> Tensor:
        return self.values[clients]

    def write(self, clients: Tensor, rows: Tensor) -> None:
        self.values[clients] = rows


class FileTable:
    """Rows [N, ...] in a nameless file, read and written row by row; it ends with the process."""

    def __init__(self, folder: Path | None, num_clients: int, row: Tensor) -> None:
        self.row_shape, self.dtype = tuple(row.shape), row.dtype
        self.row_bytes = prod(self.row_shape) * row.element_size()
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (kept open)
        self._file.truncate(num_clients * self.row_bytes)

    def read(self, clients: Tensor) -> Tensor:
        rows = torch.empty(len(clients), *self.row_shape, dtype=self.dtype)
        for client, row in zip(clients.tolist(), _bytes(rows), strict=True):
            read_all(self._file.fileno(), row.data, client * self.row_bytes)
        return rows

    def write(self, clients: Tensor, rows: Tensor) -> None:
        for client, row in zip(clients.tolist(), _bytes(rows.contiguous()), strict=True):
            write_all(self._file.fileno(), row.data, client * self.row_bytes)

    def cut(self, count: int) -> None:
        """The first rows only."""
        self._file.truncate(count * self.row_bytes)


def _bytes(rows: Tensor) -> NDArray[np.uint8]:
    """The bytes of every row, sharing memory."""
    return rows.flatten(1).view(torch.uint8).numpy()


class Memory:
    """Client memory of an engine; a row is written by one block at a time.

    Tables for which the budget has no room go to files in `folder` (None: where the
    system keeps temporary files).
    """

    def __init__(
        self, num_clients: int, budget: Budget | None = None, folder: Path | None = None
    ) -> None:
        self.num_clients, self.folder = num_clients, folder
        self.budget = budget or Budget()
        self.tables: dict[str, RamTable | FileTable] = {}
        self.known: dict[str, Tensor] = {}
        self._lock = threading.Lock()

    def _table(self, name: str, row: Tensor) -> RamTable | FileTable:
        with self._lock:
            if name not in self.tables:
                self.known[name] = torch.zeros(self.num_clients, dtype=torch.bool)
                if self.budget.take(self.num_clients * row.numel() * row.element_size()):
                    self.tables[name] = RamTable(self.num_clients, row)
                else:
                    self.tables[name] = FileTable(self.folder, self.num_clients, row)
            return self.tables[name]

    def read(self, name: str, clients: Tensor, default: Tensor) -> Tensor:
        """What these clients kept under a name; `default` (1 or B rows) for those who never did."""
        rows = default.expand(len(clients), *default.shape[1:])
        if name not in self.tables:
            return rows
        known = self.known[name][clients]
        kept = self.tables[name].read(clients).to(default.device)
        if bool(known.all()):
            return kept
        return torch.where(known.to(default.device).view(-1, *[1] * (kept.dim() - 1)), kept, rows)

    def write(self, name: str, clients: Tensor, rows: Tensor) -> None:
        self._table(name, rows[0]).write(clients, rows.detach().cpu())
        self.known[name][clients] = True

    def state(self) -> dict[str, Tensor | Chunked]:
        """All tables by name, for a checkpoint; those in files as a stream of rows."""
        found: dict[str, Tensor | Chunked] = {}
        for name, table in self.tables.items():
            found[f"{name}.known"] = self.known[name]
            if isinstance(table, RamTable):
                found[f"{name}.values"] = table.values
            else:
                shape = (self.num_clients, *table.row_shape)
                found[f"{name}.values"] = Chunked(shape, table.dtype, self._chunks(table))
        return found

    def _chunks(self, table: FileTable) -> Iterator[Tensor]:
        for clients in self._stretches(table.row_bytes):
            yield table.read(clients)

    def _stretches(self, row_bytes: int) -> tuple[Tensor, ...]:
        stretches: tuple[Tensor, ...] = torch.arange(self.num_clients).split(
            max(1, CHUNK_BYTES // max(1, row_bytes))
        )
        return stretches

    def forget(self) -> None:
        """As if nobody had ever kept anything."""
        for known in self.known.values():
            known.zero_()

    def restore(self, saved: Mapping[str, Rows]) -> None:
        """The opposite of `state`, read from a file piece by piece."""
        for key, rows in saved.items():
            name, _, field = key.rpartition(".")
            if field != "values":
                continue
            row = torch.empty(rows.shape[1:], dtype=rows.dtype, device="meta")
            table = self._table(name, row)
            for clients in self._stretches(row.numel() * row.element_size()):
                table.write(clients, rows[int(clients[0]) : int(clients[-1]) + 1])
            self.known[name] = saved[f"{name}.known"][:]
