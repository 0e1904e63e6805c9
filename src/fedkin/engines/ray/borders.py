"""Which clients a shard holds: neighbours in the order of all clients, so that shards take
equally long."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor

from fedkin.errors import FedkinError

# a client costs something whatever its size: as much as so many examples
FIXED_COST = 20
# shards whose times differ by less are left as they are
TOLERANCE = 1.15


def costs(sizes: Tensor) -> Tensor:
    """What a round of each client costs, by its training examples."""
    return sizes.double() + FIXED_COST


def borders(cost: Tensor, speeds: Sequence[float]) -> list[int]:
    """Where each shard's clients begin, and at last the number of clients.

    Shard k gets neighbours whose costs add up to its part of all shards' speed, and at least one.
    """
    shards, clients = len(speeds), len(cost)
    if shards > clients:
        raise FedkinError(
            f"{shards} shards are more than the {clients} clients: give at most {clients} as shards"
        )
    ends = np.cumsum(cost.numpy())
    wanted = np.cumsum(speeds)[:-1] / np.sum(speeds) * ends[-1]
    found = [0]
    for k, share in enumerate(wanted, start=1):
        nearest = int(np.abs(ends - share).argmin()) + 1
        found.append(min(max(nearest, found[-1] + 1), clients - shards + k))
    return [*found, clients]


def measured_speeds(
    cost: Tensor, found: Sequence[int], seconds: Sequence[float]
) -> list[float] | None:
    """Cost per second of every shard; None where they take equally long already."""
    if min(seconds) <= 0 or max(seconds) <= TOLERANCE * float(np.mean(seconds)):
        return None
    own = [float(cost[lo:hi].sum()) for lo, hi in pairwise(found)]
    return [work / spent for work, spent in zip(own, seconds, strict=True)]
