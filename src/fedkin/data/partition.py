"""Who gets which sample: pure functions from labels to one index array per client.

All are exact about randomness: the same arguments and a generator in the same state
give the same rows in the same order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkin.errors import FedkinError

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def iid(labels: Rows, num_clients: int, rng: np.random.Generator) -> list[Rows]:
    """Samples divided at random, equally many to each client (up to one)."""
    _enough(len(labels), num_clients)
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), num_clients)]


def dirichlet(
    labels: Rows,
    num_clients: int,
    alpha: float,
    rng: np.random.Generator,
    min_per_client: int | None = None,
) -> list[Rows]:
    """Each class is divided among the clients in proportions drawn from Dirichlet(alpha).

    One draw per class, then samples move from the largest clients to those below the
    minimum; nothing is redrawn, so it ends for any alpha and any number of clients.
    """
    least = _minimum(len(labels), num_clients, min_per_client)
    classes, sizes = np.unique(labels, return_counts=True)
    counts = np.stack(
        [apportion(_dirichlet(alpha, num_clients, rng), int(size)) for size in sizes], axis=1
    )
    _lift(counts, least)
    return _deal(labels, classes, counts, rng)


def by_classes(
    labels: Rows,
    num_clients: int,
    classes_per_client: int,
    rng: np.random.Generator,
    size_power: float = 0.0,
    ring: bool = False,
    size_range: tuple[int, int] | None = None,
) -> list[Rows]:
    """Each client holds `classes_per_client` classes; each class is held about equally often.

    Which ones is drawn at random; on a `ring` client i holds class i and those after it, the
    first following the last, so that neighbours share all but one. A class is divided equally
    among its holders, or, with `size_power` p > 0, in proportion to rank^-p for a random ranking
    of the clients; with `size_range` such that the clients have the sizes of `sizes_within`.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    if classes_per_client > len(classes):
        raise FedkinError(
            f"classes_per_client is {classes_per_client} but the data have {len(classes)} classes; "
            f"choose at most {len(classes)}"
        )
    holds = np.zeros((num_clients, len(classes)), dtype=bool)
    times_held = np.zeros(len(classes), dtype=np.int64)
    for client in range(num_clients):
        # The classes held least often so far come first, in random order among equals.
        order = np.lexsort((rng.random(len(classes)), times_held))[:classes_per_client]
        if ring:
            order = (client + np.arange(classes_per_client)) % len(classes)
        holds[client, order] = True
        times_held[order] += 1
    weights = holds * _power_weights(num_clients, size_power, rng)[:, None]
    if size_range is not None:
        wanted = rng.permutation(sizes_within(size_range, num_clients, len(labels)))
        weights = _with_sums(holds.astype(np.float64), wanted, sizes)
    counts = np.zeros(holds.shape, dtype=np.int64)
    for c, size in enumerate(sizes):
        if holds[:, c].any():
            counts[:, c] = apportion(weights[:, c], int(size))
    return _deal(labels, classes, counts, rng)


def shards(
    labels: Rows, num_clients: int, shards_per_client: int, rng: np.random.Generator
) -> list[Rows]:
    """Samples sorted by label, cut into equal shards, `shards_per_client` for each client."""
    total = num_clients * shards_per_client
    if total > len(labels):
        raise FedkinError(
            f"{num_clients} clients with {shards_per_client} shards each need {total} shards but "
            f"there are {len(labels)} samples; lower num_clients or shards_per_client"
        )
    by_label = np.lexsort((rng.random(len(labels)), labels))
    pieces = np.array_split(by_label, total)
    shares = rng.permutation(total).reshape(num_clients, shards_per_client)
    return [np.sort(np.concatenate([pieces[s] for s in own])) for own in shares]


def powerlaw(
    labels: Rows,
    num_clients: int,
    power: float,
    rng: np.random.Generator,
    min_per_client: int | None = None,
) -> list[Rows]:
    """Samples divided at random with client sizes falling as rank^-power, ranks at random."""
    least = _minimum(len(labels), num_clients, min_per_client)
    weights = _power_weights(num_clients, power, rng)
    sizes = least + apportion(weights, len(labels) - least * num_clients)
    cuts = np.cumsum(sizes)[:-1]
    return [np.sort(part) for part in np.split(rng.permutation(len(labels)), cuts)]


def by_column(clients: Rows, num_clients: int) -> list[Rows]:
    """Client i gets the rows whose entry in the client column is i; rows with -1 go to nobody."""
    order = np.argsort(clients, kind="stable")
    bounds = np.searchsorted(clients[order], np.arange(num_clients + 1))
    return [order[a:b] for a, b in pairwise(bounds)]


def apportion(weights: Floats, total: int) -> Rows:
    """Whole numbers summing to `total`, as near to proportional as possible (largest remainder)."""
    share = weights / weights.sum() * total
    counts: Rows = np.floor(share).astype(np.int64)
    short = total - int(counts.sum())
    # Only parts with weight may be rounded up; the sort is stable, so ties go to the first.
    by_remainder = np.argsort(np.where(weights > 0, counts - share, np.inf), kind="stable")
    counts[by_remainder[:short]] += 1
    return counts


def _dirichlet(alpha: float, size: int, rng: np.random.Generator) -> Floats:
    """One Dirichlet draw, in logarithms: for small alpha the gammas themselves underflow to 0/0."""
    # Gamma(a) is distributed as Gamma(a + 1) * U^(1/a). Long before 1e-300 one gets everything;
    # below it every logarithm would be minus infinity.
    alpha = max(alpha, 1e-300)
    logs = np.log(rng.standard_gamma(alpha + 1, size)) + np.log1p(-rng.random(size)) / alpha
    draw: Floats = np.exp(logs - logs.max())
    return draw


def _power_weights(num_clients: int, power: float, rng: np.random.Generator) -> Floats:
    weights: Floats = rng.permutation(np.arange(1, num_clients + 1)) ** -float(power)
    return weights


def sizes_within(size_range: tuple[int, int], num_clients: int, total: int) -> Floats:
    """Falling sizes low + (high - low)*t^q, t from 1 to 0, with q such that they sum to total."""
    low, high = size_range
    t = np.linspace(1, 0, num_clients)

    def excess(q: float) -> float:
        return float((low + (high - low) * t**q).sum() - total)

    if not 0 < low <= high or excess(0.01) < 0 or excess(100.0) > 0:
        raise FedkinError(
            f"size_range is {low} to {high}: {num_clients} clients of such sizes cannot share "
            f"{total} samples, {total // num_clients} each on average"
        )
    from scipy.optimize import brentq  # imported here: it takes longer than most partitions

    sizes: Floats = low + (high - low) * t ** brentq(excess, 0.01, 100.0)
    return sizes


def _with_sums(weights: Floats, rows: Floats, columns: Rows) -> Floats:
    """Weights made to sum to these numbers along rows and columns, by scaling them in turn."""
    for _ in range(1000):
        weights = weights * (columns / weights.sum(0))
        found = weights.sum(1)
        if np.abs(found - rows).max() < 0.1:
            return weights
        weights = weights * (rows / found)[:, None]
    raise FedkinError(
        "clients of the sizes of size_range cannot have these classes: the largest would need "
        "more than there is of theirs; narrow size_range, or raise classes_per_client"
    )


def _lift(counts: Rows, least: int) -> None:
    """Move samples, in place, from the largest clients until every client has `least`."""
    sizes = counts.sum(1)
    for client in np.flatnonzero(sizes < least):
        while (need := least - sizes[client]) > 0:
            donor = int(np.argmax(sizes))
            c = int(np.argmax(counts[donor]))
            moved = min(need, counts[donor, c], sizes[donor] - least)
            counts[donor, c] -= moved
            counts[client, c] += moved
            sizes[donor] -= moved
            sizes[client] += moved


def _deal(labels: Rows, classes: Rows, counts: Rows, rng: np.random.Generator) -> list[Rows]:
    """Rows at random such that client i gets counts[i, c] samples of class c."""
    owner = np.full(len(labels), -1, dtype=np.int64)
    clients = np.arange(len(counts))
    for c, label in enumerate(classes):
        owners = np.repeat(clients, counts[:, c])
        owner[rng.permutation(np.flatnonzero(labels == label))[: len(owners)]] = owners
    return by_column(owner, len(counts))


def _minimum(samples: int, num_clients: int, wanted: int | None) -> int:
    """The fewest samples per client: as asked, or 10 where there is enough for everybody."""
    _enough(samples, num_clients)
    if wanted is None:
        return min(10, samples // num_clients)
    if wanted * num_clients > samples:
        raise FedkinError(
            f"{num_clients} clients with at least {wanted} samples each need "
            f"{wanted * num_clients} samples but there are {samples}; "
            "lower num_clients or min_per_client"
        )
    return wanted


def _enough(samples: int, num_clients: int) -> None:
    if num_clients < 1:
        raise FedkinError(f"num_clients is {num_clients}; choose at least 1")
    if num_clients > samples:
        raise FedkinError(
            f"{num_clients} clients cannot share {samples} samples; lower num_clients"
        )
