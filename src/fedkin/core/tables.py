"""The server's tables of models: a row each, in RAM or, beyond a budget, in a file.

Rows go to clients and come back some at a time, so that all of them are never in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from fedkin.core import memory
from fedkin.core.memory import Budget, FileTable, RamTable
from fedkin.tensors import Chunked

# bytes of rows that are read at a time: the same in RAM and in files, so that clients are put
# together in the same blocks and a run gives the same numbers wherever its models are
READ_BYTES = 1 << 26


class Table:
    """Models [count, d]. Row r, as long as it was never written, is start[r % len(start)]."""

    def __init__(self, count: int, start: Tensor, room: Room) -> None:
        self.count, self._room = count, room
        self.known = torch.zeros(count, dtype=torch.bool)
        self.begin(start)
        self._kept: RamTable | FileTable | None = None

    def begin(self, start: Tensor) -> None:
        """What rows that were never written are: one model [d], or some in turn [m, d]."""
        self.start = start.view(-1, start.shape[-1]).contiguous()

    @property
    def width(self) -> int:
        return self.start.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.start.dtype

    @property
    def in_file(self) -> bool:
        return isinstance(self._kept, FileTable)

    def read(self, places: Tensor) -> Tensor:
        known = self.known[places]
        if self._kept is None or not bool(known.any()):
            return self.start[places % len(self.start)]
        if bool(known.all()):
            return self._kept.read(places).to(self.start.device)
        rows = self.start[places % len(self.start)]
        rows[known.to(rows.device)] = self._kept.read(places[known]).to(rows.device)
        return rows

    def write(self, places: Tensor, rows: Tensor) -> None:
        if self._kept is None:
            self._kept = self._room.rows(self.count, self.start[0])
        self._kept.write(places, rows.detach().cpu())
        self.known[places] = True

    def at(self, places: Tensor, other: Tensor | None = None) -> Rows:
        """Some rows, read when they are needed. Place -1 - i is row i % len(other) of `other`."""
        return Rows(self, places, self.start[:1] if other is None else other)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Rows in the places of others."""
        for part in torch.arange(len(source)).split(self.at_once):
            self.write(target[part], self.read(source[part]))

    def keep(self, count: int) -> None:
        """The first rows only."""
        self.count, self.known = count, self.known[:count].clone()
        if isinstance(self._kept, RamTable):
            self._kept.values = self._kept.values[:count].clone()
        elif self._kept is not None:
            self._kept.cut(count)

    @property
    def at_once(self) -> int:
        """How many rows are read at a time."""
        return max(1, READ_BYTES // max(1, self.width * self.dtype.itemsize))

    # in checkpoints ---------------------------------------------------------------------

    def state(self) -> dict[str, Tensor | Chunked]:
        """All that is to be kept, by name: rows only if there are any, as a stream."""
        found: dict[str, Tensor | Chunked] = {"start": self.start, "known": self.known}
        if bool(self.known.any()):
            found["values"] = Chunked((self.count, self.width), self.dtype, self._pieces())
        return found

    def _pieces(self) -> Iterator[Tensor]:
        for places in torch.arange(self.count).split(self.at_once):
            yield self.read(places)

    def takes(self, saved: Mapping[str, memory.Rows]) -> bool:
        """Whether this is the state of such a table, maybe of its first rows only."""
        start, known, values = (saved.get(name) for name in ("start", "known", "values"))
        if start is None or known is None:
            return False
        whole = (tuple(start.shape[1:]), start.dtype) == ((self.width,), self.dtype)
        rows = known.dtype == torch.bool and len(known.shape) == 1
        if values is None:
            return whole and rows and len(start.shape) == 2
        same = (tuple(values.shape), values.dtype) == ((known.shape[0], self.width), self.dtype)
        return whole and rows and same

    def restore(self, saved: Mapping[str, memory.Rows]) -> None:
        """The opposite of `state`, read from a file piece by piece."""
        known = saved["known"][:]
        if len(known) > self.count:  # rows were dropped since the checkpoint
            self._kept = None
        self.keep(len(known))
        self.known.zero_()
        self.begin(saved["start"][:].to(self.start.device))
        if "values" not in saved:
            return
        for places in torch.arange(self.count).split(self.at_once):
            here = known[places]
            if bool(here.any()):
                rows = saved["values"][int(places[0]) : int(places[-1]) + 1]
                self.write(places[here], rows[here])


@dataclass(frozen=True)
class Rows:
    """Rows of a table, [m, d] or [m, k, d], that are read when they are needed."""

    table: Table
    places: Tensor
    other: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.places.shape, self.table.width)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def row_bytes(self) -> int:
        return prod(self.shape[1:]) * self.table.dtype.itemsize

    def __getitem__(self, chosen: Tensor) -> Rows:
        return Rows(self.table, self.places[chosen], self.other)

    def read(self) -> Tensor:
        places = self.places.flatten()
        away = places < 0
        if not bool(away.any()):
            return self.table.read(places).view(self.shape)
        rows = self.table.start.new_empty(len(places), self.table.width)
        rows[away.to(rows.device)] = self.other[(-1 - places[away]) % len(self.other)]
        if not bool(away.all()):
            rows[~away.to(rows.device)] = self.table.read(places[~away])
        return rows.view(self.shape)

    def parts(self) -> tuple[Tensor, ...]:
        """Positions of rows that are read together."""
        count = max(1, READ_BYTES // max(1, self.row_bytes))
        split: tuple[Tensor, ...] = torch.arange(len(self)).split(count)
        return split


@dataclass
class Room:
    """Where tables are: in RAM as far as the budget goes, then in files of this folder."""

    budget: Budget = field(default_factory=Budget)
    folder: Path | None = None

    def table(self, count: int, start: Tensor) -> Table:
        """So many models, all of which begin as `start`."""
        return Table(count, start, self)

    def rows(self, count: int, row: Tensor) -> RamTable | FileTable:
        if self.budget.take(count * row.numel() * row.element_size()):
            return RamTable(count, row)
        return FileTable(self.folder, count, row)
