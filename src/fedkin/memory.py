"""What clients remember between rounds: one table per name, one row per client."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Table:
    """values [N, ...] and which clients have ever kept a value."""

    values: Tensor
    known: Tensor


class Memory:
    """Client memory of an engine; rows are written by one block at a time each."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients
        self.tables: dict[str, Table] = {}
        self._lock = threading.Lock()

    def allocate(self, name: str, row: Tensor) -> Tensor:
        """An empty table for rows shaped like `row`."""
        return torch.zeros(self.num_clients, *row.shape, dtype=row.dtype)

    def read(self, name: str, clients: Tensor, default: Tensor) -> Tensor:
        """What these clients kept under a name; `default` (1 or B rows) for those who never did."""
        rows = default.expand(len(clients), *default.shape[1:])
        table = self.tables.get(name)
        if table is None:
            return rows
        kept = table.values[clients].to(default.device)
        known = table.known[clients]
        if bool(known.all()):
            return kept
        return torch.where(known.to(default.device).view(-1, *[1] * (kept.dim() - 1)), kept, rows)

    def write(self, name: str, clients: Tensor, rows: Tensor) -> None:
        with self._lock:
            if name not in self.tables:
                known = torch.zeros(self.num_clients, dtype=torch.bool)
                self.tables[name] = Table(self.allocate(name, rows[0]), known)
        table = self.tables[name]
        table.values[clients] = rows.detach().to(table.values.device)
        table.known[clients] = True

    def state(self) -> dict[str, Tensor]:
        """All tables as named tensors, for a checkpoint."""
        flat = {}
        for name, table in self.tables.items():
            flat[f"{name}.values"] = table.values
            flat[f"{name}.known"] = table.known
        return flat

    def restore(self, flat: Mapping[str, Tensor]) -> None:
        """The opposite of `state`."""
        self.tables.clear()
        for key in flat:
            name, _, field = key.rpartition(".")
            if field == "values":
                values = self.allocate(name, flat[key][0])
                values.copy_(flat[key])
                self.tables[name] = Table(values, flat[f"{name}.known"].clone())
