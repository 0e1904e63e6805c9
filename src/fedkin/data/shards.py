"""Parts of the clients of a data set, for processes that hold only some of them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from fedkin.data.build import build
from fedkin.data.clients import ClientData, Examples
from fedkin.data.config import DataConfig
from fedkin.data.crowd import crowd, crowd_elsewhere
from fedkin.data.describe import checksum, class_counts
from fedkin.data.facts import with_facts
from fedkin.data.load import load
from fedkin.data.own_rows import Kinds, kinds_of, load_rows
from fedkin.data.tables import read_frame, table_pool


class Elsewhere(NamedTuple):
    """All clients without their examples, the checksum of these ("" for a crowd), and what must
    be known of a table to read some of its rows (None: it is read whole)."""

    data: ClientData
    checksum: str
    kinds: Kinds | None


def load_some(
    config: DataConfig, seed: int, first: int, last: int, known: Elsewhere | None = None
) -> ClientData:
    """Clients first .. last-1 of what `load` gives.

    Of a crowd no others are ever made, and of a table that is `known` no others are kept.
    """
    config = config.resolved()
    if config.name == "crowd":
        return crowd(config, seed, first, last)
    if known is not None and known.kinds is not None:
        return load_rows(config, seed, known.data, first, last, known.kinds)
    return some_clients(load(config, seed), first, last)


def load_elsewhere(config: DataConfig, seed: int) -> Elsewhere:
    """What is known of all clients where their examples are not."""
    config = config.resolved()
    if config.name == "crowd":
        return Elsewhere(crowd_elsewhere(config), "", None)
    kinds = None
    if config.name in ("csv", "parquet"):
        frame = read_frame(config)
        pool = table_pool(frame, config, f"table '{config.path}'")
        data, kinds = with_facts(build(pool, config, seed), config), kinds_of(frame, config)
    else:
        data = load(config, seed)
    return Elsewhere(without_examples(data), checksum(data), kinds)


def some_clients(data: ClientData, first: int, last: int) -> ClientData:
    """The data of clients first .. last-1 alone, copied, so that the rest can be given up."""

    def cut(part: Examples) -> Examples:
        lo, hi = int(part.offsets[first]), int(part.offsets[last])
        offsets = part.offsets[first : last + 1] - lo
        return Examples(part.x[lo:hi].clone(), part.y[lo:hi].clone(), offsets)

    return replace(
        data,
        train=cut(data.train),
        test=cut(data.test),
        validation=None if data.validation is None else cut(data.validation),
        names=data.names[first:last],
        groups=None if data.groups is None else data.groups[first:last],
        columns={name: values[first:last] for name, values in data.columns.items()},
        global_test=None,
        truth=None,
        counts=None,
    )


def without_examples(data: ClientData) -> ClientData:
    """The same clients, of whose examples only the number and the shape are known."""

    def blank(part: Examples) -> Examples:
        x, y = (t.new_zeros(2, *t.shape[1:]) for t in (part.x, part.y))
        return Examples.elsewhere(part.sizes, x, y)

    counts = data.counts
    if data.num_classes is not None and data.train.here:
        counts = torch.from_numpy(class_counts(data))
    return replace(
        data,
        train=blank(data.train),
        test=blank(data.test),
        validation=None if data.validation is None else blank(data.validation),
        global_test=None,
        counts=counts,
    )
