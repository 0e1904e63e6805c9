"""What a reader or generator gives: all samples together, not yet divided among clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedkin.data.clients import Truth
from fedkin.data.columns import Column
from fedkin.data.partition import Array, Rows
from fedkin.errors import FedkinError


class Encoded(NamedTuple):
    """A table's features of all rows, how each column was encoded, and notes for the user."""

    x: Array
    columns: Sequence[Column]
    notes: list[str]


Encoder = Callable[[Rows], Encoded]
"""A table's features, from the rows that are training data."""


@dataclass
class Pool:
    """Samples `x`, `y`; their clients and an official test set where the source knows them.

    `x` of type uint8 is pixels and becomes [0, 1]. `clients` numbers each row's client
    (`client_names` says which that is), `groups` the planted group of each client, `truth` the
    models that the generator drew from, `target_scale` a mean and deviation agreed on for targets
    that are numbers. Rows of one of the `people` never come on both sides of a split; of rows
    with `times` the later ones are held out.
    """

    x: Array | Encoder
    y: Array
    num_classes: int | None
    class_names: tuple[str, ...] = ()
    clients: Rows | None = None
    client_names: tuple[str, ...] = ()
    groups: Rows | None = None
    test: tuple[Array, Array] | None = None
    test_clients: Rows | None = None
    notes: list[str] = field(default_factory=list)
    truth: Truth | None = None
    target_scale: tuple[float, float] | None = None
    people: Rows | None = None
    times: Array | None = None

    @classmethod
    def of_clients(
        cls, parts: Sequence[tuple[Array, Array]], num_classes: int | None, **known: Any
    ) -> Pool:
        """One (x, y) pair per client, joined."""
        sizes = [len(y) for _, y in parts]
        return cls(
            np.concatenate([x for x, _ in parts]),
            np.concatenate([y for _, y in parts]),
            num_classes,
            clients=np.repeat(np.arange(len(parts)), sizes),
            client_names=known.pop("client_names", tuple(str(i) for i in range(len(parts)))),
            **known,
        )


def encode_labels(values: Array) -> tuple[Array, int, tuple[str, ...]]:
    """(labels from 0, number of classes, names where the labels had to be renumbered).

    Whole numbers that already start at 0 stay as they are; anything else is numbered
    in sorted order.
    """
    if values.dtype.kind in "iub" and len(values):
        low, high = int(values.min()), int(values.max())
        if low == 0 and high < len(values):
            return values.astype(np.int64), high + 1, ()
    kinds, labels = np.unique(values, return_inverse=True)
    return labels.astype(np.int64), len(kinds), tuple(str(kind) for kind in kinds)


def pixels(x: Array) -> Array:
    """Images as [n, channels, height, width], from [n, h, w] or [n, h, w, channels] too."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        return np.moveaxis(x, -1, 1)
    return x


def finite(x: Array, where: str) -> None:
    """Refuse features that are not numbers or not finite."""
    if x.dtype.kind not in "iufb":
        raise FedkinError(f"{where} has features of type {x.dtype}; give numbers")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise FedkinError(
            f"{where} has a feature that is missing or infinite in row {row}; "
            "fill or drop such rows"
        )
