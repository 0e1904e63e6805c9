"""Which examples a client looks at next: drawn with replacement, or in reshuffled passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.core import rng

Ints = NDArray[np.int64]

# the most random numbers prepared at a time, and examples' numbers held at a time, those of
# batches to come and those of a sweep
DRAW_AHEAD = 1 << 18
HOLD_NUMBERS = 1 << 18
SWEEP_NUMBERS = 1 << 22


@dataclass(frozen=True)
class Batch:
    """Examples of every row: x [B, n, ...], y [B, n, ...], weights w [B, n] (None: 1/n each).

    `noise` has a key per row for what a model draws at random while it learns from this batch:
    two models that meet the same batch meet the same dropout.
    """

    x: Tensor
    y: Tensor
    w: Tensor | None
    sizes: int | Ints
    noise: rng.Bits | None = None


class Draws:
    """Batches with replacement: the t-th batch of a client depends on its key and t alone.

    A client's examples are the `sizes` ones of x and y from `starts` on.
    """

    def __init__(
        self, keys: rng.Bits, starts: Ints, sizes: Ints, batch_size: int, x: Tensor, y: Tensor
    ) -> None:
        self.keys, self.starts, self.sizes, self.batch_size = keys, starts, sizes, batch_size
        self.x, self.y = x, y
        numbers = len(keys) * batch_size * (x[0].numel() if len(x) else 1)
        self._together = max(1, HOLD_NUMBERS // max(1, numbers))  # batches gathered at once
        self._ahead = torch.empty(0)  # places of batches to come
        self._held: list[tuple[Tensor, Tensor]] = []
        self._first, self._first_held = 0, 0

    def at(self, positions: Ints, expected: int = 1) -> tuple[Tensor, Tensor]:
        """The examples [B, batch, ...] of batch positions[b] of every row b, and their targets.

        So many batches are likely to be asked for, this one and those that follow it.
        """
        t = int(positions[0])
        if (positions != t).any():
            contenders = rng.positions(0, self.batch_size)[None] + (
                positions * self.batch_size
            ).astype(np.uint64).reshape(-1, 1)
            places = self._places(rng.bits_of_rows(self.keys, contenders))
            return gather(self.x, places), gather(self.y, places)
        if not self._first_held <= t < self._first_held + len(self._held):
            self._hold(t, expected)
        return self._held[t - self._first_held]

    def _hold(self, t: int, expected: int) -> None:
        """Gather batch t, and some of those that follow it."""
        if not self._first <= t < self._first + len(self._ahead):
            limit = max(1, DRAW_AHEAD // (len(self.keys) * self.batch_size))
            self._first, count = t, min(expected, limit)
            words = rng.bits(self.keys, rng.positions(t * self.batch_size, count, self.batch_size))
            self._ahead = self._places(words).transpose(0, 1).contiguous()
        place = t - self._first
        places = self._ahead[place : place + self._together]
        x, y = gather(self.x, places), gather(self.y, places)
        self._held, self._first_held = list(zip(x.unbind(), y.unbind(), strict=True)), t

    def _places(self, words: rng.Bits) -> Tensor:
        rows = rng.below(self.sizes, words)
        rows += self.starts.reshape(-1, *[1] * (words.ndim - 1))
        return torch.from_numpy(rows).to(self.x.device)


class Passes:
    """Batches of reshuffled passes over the data; a pass's last batch may be smaller."""

    def __init__(self, keys: rng.Bits, sizes: Ints, batch_size: int) -> None:
        self.keys, self.sizes = keys, sizes
        self.batch_size = min(batch_size, int(sizes.max()))
        self.per_pass = batches_per_pass(sizes, batch_size)
        self._order = np.zeros((len(keys), int(self.per_pass.max()) * self.batch_size), np.int64)
        self._pass = np.full(len(keys), -1, np.int64)

    def at(self, positions: Ints) -> tuple[Ints, Ints]:
        """Row numbers and which of them are real (1) or padding (0), both [B, batch]."""
        wanted, place = positions // self.per_pass, positions % self.per_pass
        stale = np.flatnonzero(wanted != self._pass)
        if len(stale):
            self._shuffle(stale, wanted[stale])
        columns = place[:, None] * self.batch_size + np.arange(self.batch_size)
        real = columns < self.sizes[:, None]
        return np.take_along_axis(self._order, columns, 1), real.astype(np.int64)

    def _shuffle(self, rows: Ints, passes: Ints) -> None:
        longest = int(self.sizes[rows].max())
        words = rng.bits(rng.key(self.keys[rows], passes), rng.positions(0, longest))
        words[np.arange(longest) >= self.sizes[rows][:, None]] = np.iinfo(np.uint64).max
        self._order[rows, :longest] = np.argsort(words, axis=1, kind="stable")
        self._pass[rows] = passes


def batches_per_pass(sizes: Ints, batch_size: int) -> Ints:
    """How many batches cover each client's data once."""
    return -(-sizes // batch_size)


def sweep(
    x: Tensor, y: Tensor, starts: Ints, sizes: Ints, dtype: torch.dtype
) -> Iterator[tuple[Batch, Tensor]]:
    """Examples start .. start+size of every row in stretches, with a mask (0 for padding)."""
    numbers = int(x[0].numel()) if len(x) else 1
    count, size, first = len(sizes), int(sizes[0]), int(starts[0])
    if np.array_equal(starts, first + size * np.arange(count)) and (sizes == size).all():
        # rows of one size, side by side: nothing to copy
        x, y = (t[first : first + count * size].view(count, size, *t.shape[1:]) for t in (x, y))
        for lo, hi in _columns(sizes, numbers):
            mask = torch.ones(count, hi - lo, dtype=dtype, device=x.device)
            yield Batch(x[:, lo:hi], y[:, lo:hi], mask, hi - lo), mask
        return
    for lo, hi in _columns(sizes, numbers):
        columns = np.arange(lo, hi)
        real = columns < sizes[:, None]
        rows = np.minimum(starts[:, None] + columns, len(y) - 1)
        mask = torch.from_numpy(real).to(x.device, dtype)
        yield Batch(gather(x, rows), gather(y, rows), mask, real.sum(1)), mask


def _columns(sizes: Ints, numbers_per_example: int) -> list[tuple[int, int]]:
    """Cut 0 .. max(sizes) into stretches of examples that fit in cache for all rows."""
    longest = int(sizes.max(initial=0))
    width = max(1, SWEEP_NUMBERS // max(1, len(sizes) * numbers_per_example))
    return [(lo, min(lo + width, longest)) for lo in range(0, longest, width)]


def gather(values: Tensor, rows: Ints | Tensor) -> Tensor:
    """values[rows] for a table of row numbers, keeping its shape in front."""
    places = rows if isinstance(rows, Tensor) else torch.from_numpy(rows).to(values.device)
    found = values.index_select(0, places.reshape(-1))
    return found.view(*places.shape, *values.shape[1:])
