"""Exact accounting per client: bytes down and up, gradient evaluations, samples seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

COLUMNS = ("bytes_down", "bytes_up", "gradients", "samples")


class Accounts:
    """One row per client, one column per thing counted. Bytes are those of the tensors sent."""

    def __init__(self, num_clients: int) -> None:
        self.table = torch.zeros(num_clients, len(COLUMNS), dtype=torch.int64)

    def add(self, clients: Tensor, down: int, up: int, gradients: Any, samples: Any) -> None:
        """Count for clients, none of them twice."""
        more = np.empty((len(clients), len(COLUMNS)), np.int64)
        more[:, 0], more[:, 1], more[:, 2], more[:, 3] = down, up, gradients, samples
        self.table.numpy()[clients.numpy()] += more

    def column(self, name: str) -> Tensor:
        """One count for every client."""
        return self.table[:, COLUMNS.index(name)]

    def total(self, name: str) -> int:
        """One count over all clients."""
        return int(self.column(name).sum())
