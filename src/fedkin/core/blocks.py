"""What an engine brings back: rows of answers, or their sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Counts = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Block:
    """Some clients' answers: their positions in the request, rows of replies, work done.

    `good` marks the rows whose work ended in finite numbers, answer and memory; an engine
    whose clients are elsewhere looks at the answers itself.
    """

    positions: Tensor
    reply: dict[str, Tensor]
    good: Tensor
    gradients: Counts
    samples: Counts

    @property
    def row_bytes(self) -> int:
        """What travelled from each of these clients: the tensors' own bytes."""
        return row_bytes(self.reply)


@dataclass(frozen=True)
class Sums:
    """Some clients' answers added up where they were computed: `reply` has no rows any more.

    Only good rows are in the sums; `weight` is what these rows count together.
    """

    positions: Tensor
    reply: dict[str, Tensor]
    weight: float
    good: Tensor
    gradients: Counts
    samples: Counts
    row_bytes: int


def add_up(
    block: Block, good: Tensor, weights: Tensor | None, onto: Mapping[str, Tensor] | None = None
) -> Sums:
    """The weighted sum of a block's good rows, on top of earlier sums (`onto`, whose memory is
    used up) where given; one weight per row, all 1 unless given."""
    w, count = good.double(), int(good.sum())
    if weights is not None:
        w *= weights.double()
    sums = {}
    for name, value in block.reply.items():
        rows = value.flatten(1)
        rows = rows if count == len(rows) else torch.nan_to_num(rows, 0.0, 0.0, 0.0)
        if onto and rows.is_floating_point():  # large models: no second sum in memory
            sums[name] = onto[name].view(-1).addmv_(rows.t(), w.to(rows)).view(value.shape[1:])
        else:
            sums[name] = (w.to(rows) @ rows).view(value.shape[1:])
            sums[name] = sums[name] + onto[name] if onto else sums[name]
    return Sums(
        block.positions, sums, float(w.sum()), good, block.gradients, block.samples,
        block.row_bytes,
    )  # fmt: skip


def row_bytes(rows: Mapping[str, Tensor]) -> int:
    """The bytes of one row of these tensors together."""
    return sum(v.element_size() * v.numel() // len(v) for v in rows.values() if len(v))
