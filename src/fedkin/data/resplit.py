"""The same clients with their examples divided anew into training, validation and test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedkin.data.clients import ClientData, Examples
from fedkin.data.split import split


def resplit(
    data: ClientData, seed: int, test_fraction: float = 0.25, validation_fraction: float = 0.2
) -> ClientData:
    """Every client's examples pooled and divided again, class shares kept; seeds differ.

    `validation_fraction` is of what is not test.
    """
    rng = np.random.default_rng([seed, 6])
    sets: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[], [], []]
    parts = [p for p in (data.train, data.validation, data.test) if p is not None]
    for client in range(data.num_clients):
        x, y = (torch.cat(both) for both in zip(*(part[client] for part in parts), strict=True))
        labels = y.numpy() if data.num_classes is not None else np.zeros(len(y), np.int64)
        rest, test = split(np.arange(len(y)), labels, test_fraction, rng)
        train, validation = split(rest, labels, validation_fraction, rng)
        for kept, rows in zip(sets, (train, validation, test), strict=True):
            kept.append((x[rows], y[rows]))
    made = [Examples.of(part) for part in sets]
    return replace(data, train=made[0], validation=made[1], test=made[2], global_test=None)
