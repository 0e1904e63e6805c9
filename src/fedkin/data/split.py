"""Each client's own rows divided into training, validation and test, class shares kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedkin.data.partition import Array, Rows, apportion, by_column


def take(labels: Rows, count: int, rng: np.random.Generator) -> Rows:
    """`count` random positions in `labels`, each class with its share as nearly as possible."""
    count = min(count, len(labels))
    if count == 0:
        return np.empty(0, dtype=np.int64)
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quota = apportion(sizes.astype(np.float64), count)
    order = np.lexsort((rng.random(len(labels)), inverse))
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(labels)) - np.repeat(starts, sizes)
    return np.sort(order[rank < np.repeat(quota, sizes)])


def split(rows: Rows, labels: Rows, fraction: float, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """(kept, held out) parts of `rows`: round(fraction * n) held out, class shares kept.

    With two samples or more and a positive fraction neither part is empty; a single
    sample is kept.
    """
    n = len(rows)
    count = round(fraction * n)
    if fraction > 0 and n > 0:
        count = min(max(count, 1), n - 1)
    held = np.zeros(n, dtype=bool)
    held[take(labels[rows], count, rng)] = True
    return rows[~held], rows[held]


def hold_out(
    parts: list[Rows],
    labels: Rows,
    fraction: float,
    rngs: Sequence[np.random.Generator],
    people: Rows | None = None,
    times: Array | None = None,
) -> tuple[list[Rows], list[Rows]]:
    """(kept, held out) rows of every client, drawn from the client's one of the `rngs`.

    Rows of one person stay together, even at several clients. With `times` the latest rows (or
    the people whose last row is latest) are held out; otherwise they are drawn.
    """
    if people is None and times is None:
        pairs = [split(rows, labels, fraction, rng) for rows, rng in zip(parts, rngs, strict=True)]
        return [kept for kept, _ in pairs], [held for _, held in pairs]
    units = np.arange(len(labels)) if people is None else people
    side: dict[int, bool] = {}  # of people who were met at an earlier client
    kept, held = [], []
    for rows, rng in zip(parts, rngs, strict=True):
        own, first, sizes = np.unique(units[rows], return_index=True, return_counts=True)
        if times is None:
            order = rng.permutation(len(own))
        else:
            last = np.full(len(own), -np.inf)
            np.maximum.at(last, np.searchsorted(own, units[rows]), times[rows])
            order = np.lexsort((first, last))[::-1]
        left = round(fraction * len(rows))
        left = min(max(left, 1), len(rows) - 1) if fraction > 0 and len(rows) else 0
        left -= int(sum(size for unit, size in zip(own, sizes, strict=True) if side.get(int(unit))))
        inside = sum(1 for unit in own if side.get(int(unit), True) is False)
        for place, at in enumerate(order):
            unit = int(own[at])
            if unit not in side:
                alone = place == len(order) - 1 and not inside  # somebody is left to learn from
                side[unit] = left > 0 and not alone and sizes[at] <= max(2 * left, 1)
                left -= int(sizes[at]) if side[unit] else 0
                inside += not side[unit]
        out = np.array([side[int(unit)] for unit in units[rows]], dtype=bool)
        kept.append(rows[~out])
        held.append(rows[out])
    return kept, held


def assign_folds(
    parts: list[Rows],
    labels: Rows,
    count: int,
    rng: np.random.Generator,
    people: Rows | None = None,
) -> Rows:
    """The fold, 0 to count - 1, in which each row is held out; -1: in none.

    Rows of a client are assigned in turn, class by class, so that its folds differ
    by one row at most and have its class shares. Rows of one person are in one fold, even at
    several clients. A client whose rows would all be held out at once keeps them for training.
    """
    fold = np.full(len(labels), -1, dtype=np.int64)
    if people is None:
        for rows in parts:
            order = np.lexsort((rng.random(len(rows)), labels[rows]))
            turn = np.arange(len(rows)) + rng.integers(count)
            fold[rows[order]] = turn % count if len(rows) > 1 else -1
        return fold
    chosen: dict[int, int] = {}
    for rows in parts:
        own, sizes = np.unique(people[rows], return_counts=True)
        held = np.zeros(count)
        for unit, size in zip(own, sizes, strict=True):
            if int(unit) in chosen:
                held[chosen[int(unit)]] += size
        for at in np.lexsort((rng.random(len(own)), -sizes)):  # the largest first: they fit worst
            if int(own[at]) not in chosen:
                least = np.flatnonzero(held == held.min())
                chosen[int(own[at])] = int(rng.choice(least))
                held[chosen[int(own[at])]] += sizes[at]
    for rows in parts:
        own = np.unique(people[rows])
        if len({chosen[int(unit)] for unit in own}) == 1:
            chosen.update((int(unit), -1) for unit in own)
    for rows in parts:
        fold[rows] = [chosen[int(unit)] for unit in people[rows]]
    return fold


def assign_test(
    train: list[Rows], labels: Rows, test_labels: Rows, rng: np.random.Generator
) -> list[Rows]:
    """Rows of an official test set for every client, in the class shares of its training rows.

    Each class's test samples are divided among the clients in proportion to how many
    training samples of that class they hold, so no test sample goes to two clients, with
    one exception: a client too small to be given any takes one of its commonest class.
    """
    num_classes = 1 + max(int(labels.max()), int(test_labels.max()))
    held = np.stack([np.bincount(labels[rows], minlength=num_classes) for rows in train])
    owner = np.full(len(test_labels), -1, dtype=np.int64)
    for c in np.flatnonzero(held.any(0)):
        rows = rng.permutation(np.flatnonzero(test_labels == c))
        counts = apportion(held[:, c].astype(np.float64), len(rows))
        owner[rows] = np.repeat(np.arange(len(train)), counts)
    rows_of = by_column(owner, len(train))
    for client, rows in enumerate(rows_of):
        if not len(rows):
            rows_of[client] = np.flatnonzero(test_labels == held[client].argmax())[:1]
    return rows_of
