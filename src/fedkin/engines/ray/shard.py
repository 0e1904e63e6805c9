"""One shard: some clients' data, memory and kernels, in a process of the cluster."""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core.blocks import Block, Sums, add_up
from fedkin.core.federation import Request
from fedkin.core.guard import Guard
from fedkin.core.memory import Budget, Memory
from fedkin.core.problem import Problem
from fedkin.core.steps import find_step, lend_step
from fedkin.core.variants import Variant
from fedkin.data import ClientData, DataConfig
from fedkin.data.shards import Elsewhere, load_elsewhere, load_some
from fedkin.engines.embedded import Choices, Embedded
from fedkin.errors import FedkinError
from fedkin.version import __version__

Arrays = dict[str, np.ndarray[Any, Any]]
# the contender, the driver's count of beginnings, the round and the request in it
Place = tuple[str, int, int, int]


@dataclass(frozen=True)
class Described:
    """Data that every shard reads or generates by itself, as a config describes them.

    `known` is what a reader has found out about them.
    """

    config: DataConfig
    seed: int
    known: Elsewhere | None = None


@dataclass(frozen=True)
class Work:
    """A request to a shard, its tensors as arrays; `each`, `at` and `keys` are the shard's rows."""

    place: Place
    step: str
    at: np.ndarray[Any, Any]
    keys: np.ndarray[Any, Any]
    each: Arrays
    hyper: Mapping[str, Any]
    remember: bool
    variant: Mapping[str, Any]
    summed: bool
    weights: np.ndarray[Any, Any] | None
    guard: Guard | None


@dataclass(frozen=True)
class Answer:
    """What a shard brings back: rows in the order asked, or their sum where that was asked."""

    reply: Arrays
    weight: float
    good: np.ndarray[Any, Any]
    gradients: np.ndarray[Any, Any]
    samples: np.ndarray[Any, Any]
    row_bytes: int
    seconds: float
    choices: Sequence[Mapping[str, Any]]


def versions() -> dict[str, str]:
    """What must be the same at the driver and at every shard."""
    return {"python": platform.python_version(), "fedkin": __version__, "torch": torch.__version__}


class Shard:
    """Answers requests about its clients, each request once: asked again, it gives the same
    answer and its clients' memory stays as it is."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        torch.set_num_threads(threads)
        self._engines: dict[str, Embedded] = {}
        self._last: dict[str, tuple[Place, Answer]] = {}

    def about(self) -> dict[str, str]:
        return versions()

    def process(self) -> int:
        return os.getpid()

    def node(self) -> str:
        """The address of the node that it is on."""
        import ray

        return str(ray.util.get_node_ip_address())

    def memory_used(self) -> int:
        """Most bytes of RAM that this process has held."""
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def read(self, source: Described) -> Elsewhere:
        """What the driver must know of the data: everything but the examples."""
        return load_elsewhere(source.config, source.seed)

    def take(
        self, data: ClientData | Described, first: int, last: int, problem: Problem, device: str,
        modules: Sequence[str],
    ) -> None:  # fmt: skip
        """Hold clients first .. last-1: read them here, or as they were sent."""
        for module in modules:
            importlib.import_module(module)
        own = data
        if isinstance(data, Described):
            own = load_some(data.config, data.seed, first, last, data.known)
        assert isinstance(own, ClientData)
        self.problem = problem.with_data(own, device)
        self._engines, self._last = {}, {}

    def open(
        self, contender: str, strategy: str, block_size: int | None, memory: int | None,
        planned: Choices,
    ) -> None:  # fmt: skip
        """Begin a method's work, with an empty memory for its clients."""
        kept = Memory(self.problem.num_clients, Budget(memory))
        self._engines[contender] = Embedded(
            self.problem, strategy, block_size, self.threads, kept, planned
        )
        self._last.pop(contender, None)

    def go_on_with(self, contender: str, choices: Choices) -> None:
        self._engines[contender].go_on_with(choices)

    def work(self, work: Work, shared: Arrays, steps: Mapping[str, Callable[..., Any]]) -> Answer:
        """Do what a request asks, or give the answer again that it got before."""
        contender = work.place[0]
        last = self._last.get(contender)
        if work.remember and last is not None and last[0] == work.place:
            return last[1]
        if work.remember and last is not None and work.place < last[0]:
            raise FedkinError(f"request {work.place} is older than {last[0]}")
        for name, step in steps.items():
            lend_step(name, step)
        start = time.perf_counter()
        engine, device = self._engines[contender], self.problem.device
        request = Request(
            find_step(work.step), torch.from_numpy(work.at.copy()), _tensors(shared, device),
            _tensors(work.each, device), dict(work.hyper), work.keys, work.remember,
            Variant(**work.variant), work.place[2:], work.guard,
        )  # fmt: skip
        weights = None if work.weights is None else torch.from_numpy(work.weights.copy())
        found = _summed(engine, request, weights) if work.summed else _rows(engine, request)
        answer = replace(
            found, seconds=time.perf_counter() - start, choices=tuple(engine.choices())
        )
        if work.remember:
            self._last[contender] = (work.place, answer)
        return answer

    # memory ----------------------------------------------------------------------------

    def tables(self, contender: str) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """What clients remember: for every name the shape and type of a row."""
        state = self._engines[contender].memory.state()
        return {name: (tuple(value.shape[1:]), value.dtype) for name, value in state.items()}

    def remembered(self, contender: str, name: str) -> np.ndarray[Any, Any]:
        """All clients' rows under a name."""
        value = self._engines[contender].memory.state()[name]
        rows = value if isinstance(value, Tensor) else torch.cat(list(value.pieces))
        return rows.numpy()

    def restore(self, contender: str, saved: Arrays) -> None:
        """Remember what was remembered at a checkpoint, and nothing else."""
        engine = self._engines[contender]
        engine.memory.forget()
        engine.memory.restore(_tensors(saved, torch.device("cpu")))
        self._last.pop(contender, None)


def _tensors(arrays: Mapping[str, np.ndarray[Any, Any]], device: torch.device) -> dict[str, Tensor]:
    """Arrays of another process as tensors of one's own: those cannot be written to."""
    return {name: torch.from_numpy(value.copy()).to(device) for name, value in arrays.items()}


def _rows(engine: Embedded, request: Request) -> Answer:
    """All rows in the order asked."""
    count, rows = len(request.at), dict[str, Tensor]()
    good = torch.zeros(count, dtype=torch.bool)
    gradients, samples = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for block in engine.run(request):
        for name, value in block.reply.items():
            if name not in rows:
                rows[name] = torch.zeros(count, *value.shape[1:], dtype=value.dtype)
            rows[name][block.positions] = value.cpu()
        _note(block, good, gradients, samples)
    arrays = {name: value.numpy() for name, value in rows.items()}
    return Answer(arrays, 0.0, good.numpy(), gradients, samples, 0, 0.0, ())


def _summed(engine: Embedded, request: Request, weights: Tensor | None) -> Answer:
    """The sum over all rows, block after block."""
    count, sums, weight, row_bytes = len(request.at), dict[str, Tensor](), 0.0, 0
    good = torch.zeros(count, dtype=torch.bool)
    gradients, samples = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for block in engine.run(request):
        own = None if weights is None else weights[block.positions]
        part = add_up(block, block.good, own)
        weight, row_bytes = weight + part.weight, part.row_bytes
        for name, value in part.reply.items():
            sums[name] = sums[name] + value if name in sums else value
        _note(part, good, gradients, samples)
    arrays = {name: value.cpu().numpy() for name, value in sums.items()}
    return Answer(arrays, weight, good.numpy(), gradients, samples, row_bytes, 0.0, ())


def _note(
    part: Block | Sums, good: Tensor, gradients: np.ndarray[Any, Any],
    samples: np.ndarray[Any, Any],
) -> None:  # fmt: skip
    positions = part.positions.numpy()
    good[part.positions] = part.good
    gradients[positions], samples[positions] = part.gradients, part.samples


def importable(step: Callable[..., Any]) -> bool:
    """Whether another process finds this step by its name alone."""
    return step.__module__.partition(".")[0] == "fedkin" and step.__module__ in sys.modules
