"""What goes wrong at shards, as sentences."""

from __future__ import annotations

import ray
from ray.exceptions import OutOfMemoryError, RayTaskError

from fedkin.data import ClientData
from fedkin.data.clients import Examples
from fedkin.errors import FedkinError

# what Ray says when it ended an actor because its node had too little memory left
SHORT = "low on memory"
OUT_OF_MEMORY = (
    "a node of the cluster ran out of memory, and a shard with it: give more shards on more nodes, "
    "or fewer clients (what a run had saved is kept, and `fedkin resume` goes on from there)"
)


def check_room(data: ClientData) -> None:
    """Refuse data that all nodes together cannot hold."""
    parts = [part for part in (data.train, data.validation, data.test) if part is not None]
    needed = sum(int(part.sizes.sum()) * _bytes_of_one(part) for part in parts)
    room = float(ray.cluster_resources().get("memory", needed))
    if needed > room:
        raise FedkinError(
            f"the data take {needed / 1e9:.3g} GB and the cluster has {room / 1e9:.3g} GB of "
            "memory: add nodes, or take fewer clients or samples"
        )


def _bytes_of_one(part: Examples) -> int:
    return sum(t[:1].numel() * t.element_size() for t in (part.x, part.y))


def cause(error: RayTaskError) -> BaseException:
    """What went wrong in a shard: our own errors as they are."""
    reason = error.cause
    if isinstance(reason, FedkinError):
        return FedkinError(str(reason))
    if isinstance(reason, MemoryError | OutOfMemoryError) or "can't allocate" in str(reason):
        return FedkinError(OUT_OF_MEMORY)
    return error
