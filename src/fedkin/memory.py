"""What clients remember between rounds: one table per name, one row per client.

Tables live in RAM; beyond a budget they live in files, of which only the rows being
worked on are ever read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from fedkin.tensors import Chunked

CHUNK_BYTES = 1 << 26


class RamTable:
    """Rows [N, ...] in one tensor."""

    def __init__(self, num_clients: int, row: Tensor) -> None:
        self.values = torch.zeros(num_clients, *row.shape, dtype=row.dtype)

    def read(self, clients: Tensor) -> Tensor:
        return self.values[clients]

    def write(self, clients: Tensor, rows: Tensor) -> None:
        self.values[clients] = rows


class FileTable:
    """Rows [N, ...] in a file, read and written row by row."""

    def __init__(self, path: Path, num_clients: int, row: Tensor) -> None:
        self.row_shape, self.dtype = tuple(row.shape), row.dtype
        self.row_bytes = max(1, prod(self.row_shape)) * row.element_size()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.truncate(self._file, num_clients * self.row_bytes)

    def read(self, clients: Tensor) -> Tensor:
        rows = torch.empty(len(clients), *self.row_shape, dtype=self.dtype)
        raw = rows.view(len(clients), -1).view(torch.uint8).numpy()
        for i, client in enumerate(clients.tolist()):
            os.preadv(self._file, [raw[i].data], client * self.row_bytes)
        return rows

    def write(self, clients: Tensor, rows: Tensor) -> None:
        raw = rows.contiguous().view(len(clients), -1).view(torch.uint8).numpy()
        for i, client in enumerate(clients.tolist()):
            os.pwritev(self._file, [raw[i].data], client * self.row_bytes)

    def __del__(self) -> None:
        os.close(self._file)


class Memory:
    """Client memory of an engine; a row is written by one block at a time.

    `budget` bytes may be held in RAM; tables that would exceed it go to `folder`.
    """

    def __init__(
        self, num_clients: int, budget: int | None = None, folder: Path | None = None
    ) -> None:
        self.num_clients, self.budget, self.folder = num_clients, budget, folder
        self.tables: dict[str, RamTable | FileTable] = {}
        self.known: dict[str, Tensor] = {}
        self._held = 0
        self._lock = threading.Lock()

    def _table(self, name: str, row: Tensor) -> RamTable | FileTable:
        with self._lock:
            if name not in self.tables:
                size = self.num_clients * row.numel() * row.element_size()
                self.known[name] = torch.zeros(self.num_clients, dtype=torch.bool)
                if self.budget is None or self.folder is None or self._held + size <= self.budget:
                    self._held += size
                    self.tables[name] = RamTable(self.num_clients, row)
                else:
                    self.tables[name] = FileTable(self.folder / name, self.num_clients, row)
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
            max(1, CHUNK_BYTES // row_bytes)
        )
        return stretches

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """The opposite of `state`; values may be lazy slices that are read piece by piece."""
        for key in saved:
            name, _, field = key.rpartition(".")
            if field != "values":
                continue
            rows = saved[key]
            first = rows[0:1][0]
            table = self._table(name, first)
            for clients in self._stretches(max(1, first.numel() * first.element_size())):
                table.write(clients, rows[int(clients[0]) : int(clients[-1]) + 1])
            self.known[name] = saved[f"{name}.known"][:].clone()
