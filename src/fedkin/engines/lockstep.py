"""Runs as clients: repeats and sweeps of a method computed as one.

Every run keeps its own control flow, in its own greenlet. Whenever all runs wait at
`Federation.map`, requests for the same step are concatenated and computed as one stacked
request; each run gets its own rows back. A hyper-parameter that differs between runs becomes
a column. Methods are not aware of this.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from greenlet import getcurrent, greenlet
from torch import Tensor

from fedkin.core.blocks import Block
from fedkin.core.federation import Request
from fedkin.core.memory import Memory, RamTable, Rows
from fedkin.core.problem import Problem
from fedkin.core.variants import PLAIN, Part, Variant
from fedkin.engines.embedded import Embedded
from fedkin.tensors import Chunked


class MergedProblem(Problem):
    """All runs' clients one after the other; runs on the same data share them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        vars(self).update(vars(copy.copy(problems[0])))
        self._problems, self._variants = problems, {}
        self.train = _merge([p.train for p in problems])
        self.test = _merge([p.test for p in problems])
        if problems[0].data.validation is not None:
            self.validation = _merge([p.validation for p in problems])
        self._initials = torch.cat([p.initial for p in problems])
        self._homes = torch.cat([p.initial_home for p in problems])
        sizes = torch.tensor([p.num_clients for p in problems])
        self._run_of = torch.arange(len(problems)).repeat_interleave(sizes)

    def variant(self, variant: Variant) -> Problem:
        if variant not in self._variants and variant != PLAIN:
            varied = super().variant(variant)
            assert isinstance(varied, MergedProblem)
            own = Variant(variant.rate, module=variant.module)
            others = [p.variant(own) for p in self._problems]
            varied._initials = torch.cat([p.initial for p in others])
            varied._homes = torch.cat([p.initial_home for p in others])
        return super().variant(variant)

    def initial_of(self, who: Tensor) -> Tensor:
        return self._initials[self._run_of[who].to(self._initials.device)]

    def target_scale(self, who: Tensor) -> Tensor:
        scales = torch.cat([p.target_scale(who[:1]) for p in self._problems])
        return scales[self._run_of[who].to(scales.device)]

    def initial_home_of(self, who: Tensor) -> Tensor:
        return self._homes[self._run_of[who].to(self._homes.device)]


def _merge(parts: Sequence[Part]) -> Part:
    distinct: dict[tuple[int, int], int] = {}
    xs, ys, starts, total = [], [], [], 0
    for part in parts:
        place = (part.x.data_ptr(), part.y.data_ptr())
        if place not in distinct:
            distinct[place] = total
            xs.append(part.x)
            ys.append(part.y)
            total += len(part.y)
        starts.append(part.starts + distinct[place])
    sizes = torch.cat([part.sizes for part in parts])
    return Part(
        torch.cat(xs) if len(xs) > 1 else xs[0],
        torch.cat(ys) if len(ys) > 1 else ys[0],
        torch.cat(starts),
        sizes,
    )


def can_merge(problems: Sequence[Problem]) -> bool:
    """Whether runs on these problems can be computed as one: same model, loss and batches, and
    the same in all that is not trained. Clients' own modules are not compared."""

    def nature(p: Problem) -> tuple[Any, ...]:
        parts = (p.spec.layout, p.spec.loss, str(p.spec.module), p.l2, p.batch_size, p.reshuffle)
        kinds = (p.dtype, p.input_dtype, p.device, p.norm, p.manners.random, p.manners.mixes)
        changes = p.augment.kinds if p.augment else ()
        return (*parts, *kinds, changes, p.train.x.shape[1:], p.data.num_classes)

    def fixed(p: Problem) -> list[Tensor]:
        module = p.spec.module
        frozen = [t.detach() for t in module.parameters() if not t.requires_grad]
        return frozen + list(module.buffers())

    def alike(p: Problem, q: Problem) -> bool:
        pairs = zip(fixed(p), fixed(q), strict=True)
        return nature(p) == nature(q) and all(torch.equal(a, b) for a, b in pairs)

    if any(p.architectures is not None for p in problems):
        return len(problems) == 1
    return all(alike(p, problems[0]) for p in problems[1:])


class MemorySlice(Memory):
    """One run's clients in the memory that all runs share."""

    def __init__(self, memory: Memory, first: int, count: int) -> None:
        super().__init__(count)
        self._all, self._first = memory, first

    def read(self, name: str, clients: Tensor, default: Tensor) -> Tensor:
        return self._all.read(name, clients + self._first, default)

    def write(self, name: str, clients: Tensor, rows: Tensor) -> None:
        self._all.write(name, clients + self._first, rows)

    def forget(self) -> None:
        for known in self._all.known.values():
            known[self._first : self._first + self.num_clients] = False

    def state(self) -> dict[str, Tensor | Chunked]:
        own = slice(self._first, self._first + self.num_clients)
        found: dict[str, Tensor | Chunked] = {}
        for name, table in self._all.tables.items():
            assert isinstance(table, RamTable)
            if bool(self._all.known[name][own].any()):
                found[f"{name}.known"] = self._all.known[name][own]
                found[f"{name}.values"] = table.values[own]
        return found

    def restore(self, saved: Mapping[str, Rows]) -> None:
        for key in saved:
            name, _, field = key.rpartition(".")
            if field == "values":
                known = saved[f"{name}.known"][:].nonzero()[:, 0]
                self.write(name, known, saved[key][:][known])


class LockstepEngine:
    """The engine of one run in lockstep with others: its requests wait for the others'."""

    def __init__(self, lockstep: Lockstep, run: int, contender: str) -> None:
        self.contender = contender
        self.memory = lockstep.memory_of(run, contender)
        self.chosen = None

    def run(self, request: Request) -> Iterator[Block]:
        lockstep = getcurrent().parent
        assert lockstep is not None
        yield from lockstep.switch((self.contender, request))


class Lockstep:
    """Where runs wait for each other. `together` starts them and serves until all have ended."""

    def __init__(
        self, problems: Sequence[Problem], strategy: str = "auto", threads: int | None = None
    ) -> None:
        self.problems = problems
        self.merged = MergedProblem(problems)
        self._strategy, self._threads = strategy, threads
        counts = [p.num_clients for p in problems]
        self.first = [0, *np.cumsum(counts).tolist()]
        self._engines: dict[str, Embedded] = {}

    def engine_of(self, run: int, contender: str) -> LockstepEngine:
        """The engine of one contender of one run."""
        return LockstepEngine(self, run, contender)

    def engine(self, contender: str) -> Embedded:
        if contender not in self._engines:
            self._engines[contender] = Embedded(self.merged, self._strategy, None, self._threads)
        return self._engines[contender]

    def memory_of(self, run: int, contender: str) -> MemorySlice:
        count = self.problems[run].num_clients
        return MemorySlice(self.engine(contender).memory, self.first[run], count)

    def together(self, runs: Sequence[Callable[[], None]]) -> list[BaseException | None]:
        """Run all to the end; returns each run's error, or None."""
        errors: list[BaseException | None] = [None] * len(runs)

        def live(number: int) -> None:
            try:
                runs[number]()
            except BaseException as error:  # a run's failure must not stop the others
                errors[number] = error

        lives = [greenlet(live) for _ in runs]
        waiting = {n: request for n, one in enumerate(lives) if (request := one.switch(n))}
        while waiting:
            groups: dict[Any, list[int]] = {}
            for number in sorted(waiting):
                groups.setdefault(_kind(*waiting[number]), []).append(number)
            answers: dict[int, list[Block] | Exception] = {}
            for members in groups.values():
                answers |= zip(members, self._answer(members, waiting), strict=True)
            waiting = {n: request for n in answers if (request := _go_on(lives[n], answers[n]))}
        return errors

    def _answer(
        self, members: list[int], waiting: Mapping[int, tuple[str, Request]]
    ) -> Sequence[list[Block] | Exception]:
        contender = waiting[members[0]][0]
        requests = [waiting[number][1] for number in members]
        try:
            answers: list[list[Block]] = [[] for _ in members]
            bounds = np.cumsum([0] + [len(request.at) for request in requests])
            joined = join_requests(requests, [self.first[n] for n in members], self.merged.initial)
            for block in self.engine(contender).run(joined):
                for i, own in split_block(block, bounds):
                    answers[i].append(own)
            return answers
        except Exception as error:  # raised in every run that asked
            return [error for _ in members]


def _go_on(run: greenlet, answer: list[Block] | Exception) -> Any:
    """Hand a run its answer; returns its next request, or None when it has ended."""
    return run.throw(answer) if isinstance(answer, Exception) else run.switch(answer)


def _kind(contender: str, request: Request) -> tuple[Any, ...]:
    """Requests of one kind can be computed as one."""
    shapes = tuple(
        (name, value.shape[1:], value.dtype)
        for name, value in sorted({**request.shared, **request.each}.items())
    )
    hyper = tuple(
        (name, None if isinstance(value, float | int) and not isinstance(value, bool) else value)
        for name, value in sorted(request.hyper.items())
    )
    return contender, request.step, shapes, hyper, request.remember, request.variant, request.guard


def join_requests(requests: Sequence[Request], firsts: Sequence[int], like: Tensor) -> Request:
    """One request for the clients of several runs: what differs between runs gets rows.

    Numbers that differ become columns of the models' type (`like`).
    """
    if len(requests) == 1:
        return replace(requests[0], at=requests[0].at + firsts[0])

    def rows(name: str, request: Request) -> Tensor:
        if name in request.each:
            return request.each[name]
        value = request.shared[name]
        return value.expand(len(request.at), *value.shape[1:])

    names = {**requests[0].shared, **requests[0].each}
    each = {name: torch.cat([rows(name, request) for request in requests]) for name in names}
    counts = [len(request.at) for request in requests]
    hyper = {}
    for name, value in requests[0].hyper.items():
        values = [request.hyper[name] for request in requests]
        if all(other == value for other in values):
            hyper[name] = value
        else:
            # NumPy: torch would wake a thread on every core for it
            column = np.repeat(np.array(values, np.float64), counts)
            each[name] = torch.from_numpy(column)[:, None].to(like)
    at = torch.cat([request.at + first for request, first in zip(requests, firsts, strict=True)])
    keys = np.concatenate([request.keys for request in requests])
    return replace(requests[0], at=at, shared={}, each=each, hyper=hyper, keys=keys)


def split_block(block: Block, bounds: np.ndarray[Any, Any]) -> Iterator[tuple[int, Block]]:
    """A block of joined answers as blocks of single runs: (place in the joint request, block)."""
    owner = np.searchsorted(bounds, block.positions.numpy(), side="right") - 1
    order = np.argsort(owner, kind="stable")
    rising = bool((np.diff(owner) >= 0).all())
    cuts = np.flatnonzero(np.diff(owner[order])) + 1
    for rows in np.split(order, cuts):
        run = int(owner[rows[0]])
        chosen: Any = slice(int(rows[0]), int(rows[-1]) + 1) if rising else torch.from_numpy(rows)
        yield (
            run,
            Block(
                block.positions[chosen] - int(bounds[run]),
                {name: value[chosen] for name, value in block.reply.items()},
                block.good[chosen],
                block.gradients[rows],
                block.samples[rows],
            ),
        )
