"""A step's loop over rows that need different numbers of turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedkin.core.batches import Ints

State = tuple[Tensor, ...]
Given = Mapping[str, Any]


class Rows(Protocol):
    """A block of clients, a row each, some of which may be done before the others."""

    active: Ints | None

    def __len__(self) -> int: ...

    def only(self, rows: Ints) -> AbstractContextManager[None]:
        """Be these rows alone for a while."""
        ...


@runtime_checkable
class HasRows(Protocol):
    """What is not a tensor but holds some, with a row per client."""

    def rows(self, chosen: Tensor, count: int) -> Any:
        """The same for some of `count` clients."""
        ...


def repeat(
    client: Rows, turns: Ints, update: Callable[..., Any], state: State, given: Given | None
) -> State:
    """Apply `update` to every row as often as `turns` says for it.

    Rows that are done are computed along and thrown away; with `given` only until they are
    half of all rows: then the others go on without them.
    """
    outer, done = client.active, 0
    for until in np.unique(turns[turns > 0]):  # until then the same rows are at work
        active = (turns > done).astype(np.int64)
        if given is not None and outer is None and 2 * active.sum() <= len(active):
            rows = np.flatnonzero(active)
            return _go_on(client, rows, turns[rows] - done, update, state, given)
        active = active if outer is None else active * outer
        client.active = None if active.all() else active
        mask = torch.from_numpy(active.astype(bool)).to(state[0].device)
        for _ in range(until - done):
            new = as_state(update(*state, **(given or {})))
            state = new if client.active is None else _choose(mask, new, state)
        client.active, done = outer, until
    return state


def as_state(value: Any) -> State:
    return value if isinstance(value, tuple) else (value,)


def _choose(mask: Tensor, new: State, old: State) -> State:
    return tuple(
        torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b)
        for a, b in zip(new, old, strict=True)
    )


def _go_on(
    client: Rows, rows: Ints, turns: Ints, update: Callable[..., Any], state: State, given: Given
) -> State:
    """The rest of the turns with these rows alone."""
    count, chosen = len(client), torch.from_numpy(rows).to(state[0].device)
    own = {name: rows_of(value, chosen, count) for name, value in given.items()}
    start = tuple(rows_of(value, chosen, count) for value in state)
    with client.only(rows):
        found = repeat(client, turns, update, start, own)
    return tuple(
        old.expand(count, *new.shape[1:]).index_copy(0, chosen, new)
        for old, new in zip(state, found, strict=True)
    )


def rows_of(value: Any, chosen: Tensor, count: int) -> Any:
    """Some rows of what has one for each of `count` clients; anything else as it is."""
    if isinstance(value, Tensor):
        return value[chosen] if value.dim() and len(value) == count else value
    if isinstance(value, Mapping):
        return {name: rows_of(one, chosen, count) for name, one in value.items()}
    if isinstance(value, float | int | str) or not isinstance(value, HasRows):
        return value
    return value.rows(chosen, count)
