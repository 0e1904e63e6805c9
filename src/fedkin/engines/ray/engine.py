"""Clients in shards on a Ray cluster: one call per shard and request."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor

from fedkin.core.blocks import Block, Sums
from fedkin.core.federation import Request, Step
from fedkin.core.memory import Rows
from fedkin.core.steps import find_step, step_name
from fedkin.engines.embedded import Choices
from fedkin.engines.messages import plain_number
from fedkin.engines.ray.shard import Answer, Work, importable
from fedkin.engines.ray.shards import Shards
from fedkin.tensors import Chunked


class RayEngine:
    """One contender's requests to the shards, answered exactly once each.

    Sums are taken at the shards and added in their order, so that a run can be repeated to the
    last bit with the same shards.
    """

    def __init__(
        self, shards: Shards, contender: str, strategy: str, block_size: int | None,
        memory: int | None, planned: Choices,
    ) -> None:  # fmt: skip
        self.shards, self.contender = shards, contender
        self.memory = ShardedMemory(self)
        self._open = (strategy, block_size, None if memory is None else memory // self.count)
        self._planned, self._choices = planned, dict[int, Choices]()
        shards.reopen.append(self._reopen)
        for k in range(self.count):
            self._reopen(k)

    @property
    def count(self) -> int:
        """How many shards there are."""
        return len(self.shards.actors)

    def run(self, request: Request) -> Iterator[Block]:
        for positions, answer in self._ask(request, None, summed=False):
            reply = {name: _tensor(value) for name, value in answer.reply.items()}
            good, work = _tensor(answer.good), (answer.gradients, answer.samples)
            yield Block(positions, reply, good, *work)

    def sums(self, request: Request, weights: Tensor | None) -> Iterator[Sums]:
        for positions, answer in self._ask(request, weights, summed=True):
            reply = {name: _tensor(value) for name, value in answer.reply.items()}
            good = _tensor(answer.good)
            yield Sums(
                positions, reply, answer.weight, good, answer.gradients, answer.samples,
                answer.row_bytes,
            )  # fmt: skip

    def _ask(
        self, request: Request, weights: Tensor | None, summed: bool
    ) -> Iterator[tuple[Tensor, Answer]]:
        """Answers in the order of shards, each with its rows' positions in the request."""
        if not len(request.at):
            return
        place = (self.contender, self.shards.starts, *request.place)
        hyper = {name: plain_number(value) for name, value in request.hyper.items()}
        at, borders = request.at.numpy(), self.shards.borders
        owner = np.searchsorted(borders, at, side="right") - 1
        rows = {int(k): np.flatnonzero(owner == k) for k in np.unique(owner)}
        each = {name: value.numpy(force=True) for name, value in request.each.items()}
        w = None if weights is None else weights.numpy(force=True)

        def part(k: int, chosen: np.ndarray[Any, Any]) -> Work:
            return Work(
                place, step_name(request.step), at[chosen] - borders[k], request.keys[chosen],
                {name: value[chosen] for name, value in each.items()}, hyper, request.remember,
                request.variant.facts(), summed, None if w is None else w[chosen], request.guard,
            )  # fmt: skip

        shared = self.shards.put({k: v.numpy(force=True) for k, v in request.shared.items()})
        work = {k: part(k, chosen) for k, chosen in rows.items()}
        answers = self.shards.ask(work, shared, _steps(request))
        for k in sorted(answers):
            self._choices[k] = answers[k].choices
            yield torch.from_numpy(rows[k]), answers[k]

    # strategies --------------------------------------------------------------------------

    def choices(self) -> list[dict[str, Any]]:
        """What every shard has chosen so far."""
        return [
            {**choice, "shard": k} for k in sorted(self._choices) for choice in self._choices[k]
        ]

    def go_on_with(self, choices: Choices) -> None:
        """Use the choices of an earlier run, where its shards were the same."""
        self._planned = choices
        for k in range(self.count):
            own = _of_shard(choices, k)
            self.shards.call(k, "go_on_with", self.contender, own)

    def _reopen(self, k: int) -> None:
        strategy, block_size, memory = self._open
        own = _of_shard(self._planned, k)
        self.shards.call(k, "open", self.contender, strategy, block_size, memory, own)


class ShardedMemory:
    """What clients remember, at their shards; gathered for checkpoints and given back."""

    def __init__(self, engine: RayEngine) -> None:
        self.engine = engine

    def state(self) -> dict[str, Tensor | Chunked]:
        """All tables by name; rows are fetched shard by shard as they are written."""
        shards, contender = self.engine.shards, self.engine.contender
        tables = [shards.call(k, "tables", contender) for k in range(self.engine.count)]
        facts = {name: fact for table in tables for name, fact in table.items()}
        clients = shards.borders[-1]
        found: dict[str, Tensor | Chunked] = {}
        for name, (shape, dtype) in facts.items():
            pieces = self._pieces(name, shape, dtype, [name in table for table in tables])
            found[name] = Chunked((clients, *shape), dtype, pieces)
        return found

    def _pieces(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, has: Sequence[bool]
    ) -> Iterator[Tensor]:
        shards = self.engine.shards
        for k in range(self.engine.count):
            if has[k]:
                yield _tensor(shards.call(k, "remembered", self.engine.contender, name))
            else:
                count = shards.borders[k + 1] - shards.borders[k]
                yield torch.zeros(count, *shape, dtype=dtype)

    def forget(self) -> None:
        """Nobody remembers anything."""
        self.restore({})

    def restore(self, saved: Mapping[str, Rows], only: Sequence[int] | None = None) -> None:
        """Every shard (or some) remembers what its clients remembered then."""
        shards = self.engine.shards
        for k in range(len(shards.actors)) if only is None else only:
            lo, hi = shards.borders[k], shards.borders[k + 1]
            own = {name: rows[lo:hi].numpy() for name, rows in saved.items()}
            shards.call(k, "restore", self.engine.contender, own)


def _of_shard(choices: Choices, k: int) -> list[dict[str, Any]]:
    mine = [choice for choice in choices if choice.get("shard") == k]
    return [{name: v for name, v in choice.items() if name != "shard"} for choice in mine]


def _steps(request: Request) -> dict[str, Step]:
    """Steps of a user's own modules go along; those of fedkin are found by name."""
    steps = [request.step]
    if "make" in request.hyper:  # the step inside the step of evaluation
        steps.append(find_step(request.hyper["make"]))
    found = {}
    for step in steps:
        if not importable(step):
            found[step_name(step)] = step
    for step in found.values():
        if step.__module__ != "__main__":
            cloudpickle.register_pickle_by_value(sys.modules[step.__module__])
    return found


def _tensor(array: Any) -> Tensor:
    """An array of another process, which cannot be written to, as a tensor of our own."""
    return torch.from_numpy(np.array(array))
