"""Exact accounting per client: bytes down and up, gradient evaluations, samples seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

COLUMNS = ("bytes_down", "bytes_up", "gradients", "samples")


class Accounts:
    """One row per client, one column per thing counted. Bytes are those of the tensors sent."""

    def __init__(self, num_clients: int) -> None:
        self.table = torch.zeros(num_clients, len(COLUMNS), dtype=torch.int64)

    def add(self, clients: Tensor, down: int, up: int, gradients: Any, samples: Any) -> None:
        """Count for clients, none of them twice."""
        table, rows = self.table.numpy(), clients.numpy()
        table[rows, 0] += down
        table[rows, 1] += up
        table[rows, 2] += gradients
        table[rows, 3] += samples

    def column(self, name: str) -> Tensor:
        """One count for every client."""
        return self.table[:, COLUMNS.index(name)]

    def total(self, name: str) -> int:
        """One count over all clients."""
        return int(self.column(name).sum())
