"""All clients in this process: blocks of them stacked, on one thread or one per core."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core.blocks import Block
from fedkin.core.client import Client
from fedkin.core.federation import Request
from fedkin.core.kernels import Kernel, ModelError
from fedkin.core.memory import Memory
from fedkin.core.problem import Problem
from fedkin.core.variants import PLAIN, Variant, memory_of
from fedkin.engines.heap import keep_freed_memory
from fedkin.engines.strategy import Strategy, candidates, named, without_gradients

# seconds after which a candidate is not timed twice before the best are tried in turn
LONG_TRY = 0.3
# A candidate's time is sure when its slowest try took so little longer than its fastest, and all
# together so many seconds: more where others want the cores, who at first stand back for us.
SURE, ENOUGH, ENOUGH_BESIDE = 1.25, 0.02, 0.25
# moments at which others must want the cores, so that it is more than a passing thing
MOMENTS = 4
# how much slower than the best it may be and be tried again, when its time is sure and when not
NEAR, DOUBTFUL = 1.15, 4.0
# how many rounds' time the tries may take together, and the least and most seconds of it
ROUNDS, PATIENCE, PATIENCE_BESIDE = 10, (0.1, 1.0), (0.6, 5.0)
# seconds up to which a try takes all clients of the request, and not a block for every worker
WHOLE = 0.03

# for each form of the problem its facts and its strategy, as json can carry them
Choices = Sequence[Mapping[str, Any]]


class Embedded:
    """Runs a request as blocks of clients, each through all its local steps before the next.

    `strategy` is `auto` (time the candidates on the first request that takes gradients,
    keep the fastest) or one of the names in `strategy.py`; `chosen` is the result.
    `planned` are the `choices` of an earlier run, to be repeated exactly: they
    are made at the same moments, without timing.
    """

    def __init__(
        self,
        problem: Problem,
        strategy: str = "auto",
        block_size: int | None = None,
        threads: int | None = None,
        memory: Memory | None = None,
        planned: Choices = (),
    ) -> None:
        keep_freed_memory()
        self.problem, self._planned = problem, planned
        self.threads = threads or torch.get_num_threads()
        self.memory = memory or Memory(problem.num_clients)
        self.chosen: Strategy | None = None
        self._kernels: dict[str, Kernel] = {}
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._strategy, self._block_size = strategy, block_size
        self._variant, self._varied = PLAIN, dict[Variant, Embedded]()
        if strategy != "auto":
            clients = problem.num_clients
            self.chosen = named(strategy, problem, clients, self.threads, block_size)

    def run(self, request: Request) -> Iterator[Block]:
        if request.variant != PLAIN:
            yield from self._engine_for(request.variant).run(replace(request, variant=PLAIN))
            return
        if self.chosen is None:
            self.chosen = self._fastest(request)
        if self.chosen is not None:
            yield from self._run(request, self.chosen)
        else:
            quick = without_gradients(self.problem, len(request.at), self.threads)
            yield from self._run(request, replace(quick, block=self._block_size or quick.block))

    def choices(self) -> list[dict[str, Any]]:
        """What was chosen so far, for each form of the problem."""
        engines = (self, *self._varied.values())
        return [{**e._variant.facts(), "strategy": str(e.chosen)} for e in engines if e.chosen]

    def go_on_with(self, choices: Choices) -> None:
        """Use the choices of an earlier run."""
        for choice in choices:
            variant, strategy = _choice(choice)
            engine = self if variant == PLAIN else self._engine_for(variant)
            engine.chosen = strategy

    def _engine_for(self, variant: Variant) -> Embedded:
        """An engine for another form of the problem, with a strategy for its size."""
        if variant not in self._varied:
            problem, memory = self.problem.variant(variant), memory_of(self.memory, variant)
            same = (self._strategy, self._block_size, self.threads, memory, self._planned)
            engine = Embedded(problem, *same)
            engine._variant, engine._pools = variant, self._pools
            self._varied[variant] = engine
        return self._varied[variant]

    def _run(self, request: Request, strategy: Strategy) -> Iterator[Block]:
        kernel = self._kernel(strategy.kernel)
        order = self._order(request.at)
        blocks = even(order, self._rows(request.at, strategy), strategy.workers)
        with inner_threads(strategy.inner):
            if strategy.workers == 1 or len(blocks) == 1:
                for positions in blocks:
                    yield self._work(request, kernel, positions)
                return
            pool = self._pool(strategy.workers)
            waiting: deque[Future[Block]] = deque()
            for positions in blocks:
                waiting.append(pool.submit(self._work, request, kernel, positions))
                if len(waiting) > 2 * strategy.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _work(self, request: Request, kernel: Kernel, positions: Tensor) -> Block:
        """One block: everything its clients compute for this request."""
        part = (
            request
            if len(positions) == len(request.at) and _rising(positions)
            else request.rows(positions)
        )
        lr = part.hyper.get("lr", part.each.get("lr"))
        client = Client(self.problem, kernel, part.at, part.keys, self.memory, lr)
        with torch.no_grad():
            reply = part.step(client, **part.shared, **part.each, **part.hyper)
            rows, good = client.finish(reply, request.remember)
            if part.guard is not None:
                rows = part.guard.protect(rows, {**part.shared, **part.each}, part.keys)
        return Block(positions, rows, good, client.gradients, client.samples)

    def _rows(self, at: Tensor, strategy: Strategy) -> int:
        """How many clients make a block: one, where examples would meet others' padding."""
        meet = self.problem.mixes and self.problem.pads(at)
        return 1 if meet or self.problem.manners.mixes_in_use else strategy.block

    def _order(self, at: Tensor) -> Tensor:
        """Clients of similar size next to each other, so that little is padded."""
        sizes = self.problem.train.sizes[at]
        if len(sizes) == 0 or bool((sizes == sizes[0]).all()):
            return torch.arange(len(at))
        return torch.sort(sizes, stable=True).indices

    # choosing a strategy ------------------------------------------------------------

    def _candidates(self, clients: int) -> list[Strategy]:
        found = candidates(self.problem, clients, self.threads)
        if self._block_size:
            found = [replace(s, block=self._block_size) for s in found]
        return list(dict.fromkeys(found))

    def _fastest(self, request: Request) -> Strategy | None:
        """Time the candidates on the first clients of a real request; results are discarded.

        Those near the best are tried again in turn, and each counts by the mean of its tries:
        beside other work threads that wait for each other are as fast as ever in some tries and
        many times slower in others. There are more tries where times differ.
        """
        planned = dict(map(_choice, self._planned)).get(self._variant)
        trial = replace(request, remember=False)
        tries: dict[Strategy, list[float]] = {}
        failed: ModelError | None = None
        for strategy in self._candidates(len(request.at)):
            try:
                first = self._time(trial, strategy)
            except ModelError as error:  # what a model cannot do in this way it may do in another
                failed = error
                continue
            if first is None or planned is not None:
                return planned if first is not None else None
            second = None if first > LONG_TRY else self._time(trial, strategy)
            tries[strategy] = [first if second is None else second]  # the first also prepares
        if not tries and failed is not None:
            raise failed
        return self._best_in_turn(trial, tries)

    def _best_in_turn(self, trial: Request, tries: dict[Strategy, list[float]]) -> Strategy:
        """The fastest of the candidates that may be the best, tried in turn until that is sure."""
        clients, rivals = len(trial.at), list(tries)
        each = {strategy: self._in_a_try(trial, strategy) for strategy in rivals}
        mean = {strategy: tries[strategy][0] / each[strategy] for strategy in rivals}
        round_ = min(mean.values()) * clients
        if round_ <= WHOLE and set(each.values()) != {clients}:
            each, tries = dict.fromkeys(rivals, clients), {strategy: [] for strategy in rivals}
        enough, patience = (
            (ENOUGH_BESIDE, PATIENCE_BESIDE) if _others_wait(self.threads) else (ENOUGH, PATIENCE)
        )
        end = time.perf_counter() + np.clip(ROUNDS * round_, *patience)
        while len(rivals) > 1 and time.perf_counter() < end:
            for strategy in rivals:
                tries[strategy].append(self._time(trial, strategy, each[strategy]) or np.inf)
                mean[strategy] = float(np.mean(tries[strategy])) / each[strategy]
            best = min(mean[strategy] for strategy in rivals)
            sure = {strategy: _sure(tries[strategy], enough) for strategy in rivals}
            rivals = [s for s in rivals if mean[s] <= (NEAR if sure[s] else DOUBTFUL) * best]
            if all(sure[strategy] for strategy in rivals):
                break
        return min(rivals, key=lambda strategy: mean[strategy])

    def _in_a_try(self, trial: Request, strategy: Strategy) -> int:
        """How many clients a short try takes: a block for every worker."""
        return min(len(trial.at), strategy.block * strategy.workers)

    def _time(self, trial: Request, strategy: Strategy, clients: int | None = None) -> float | None:
        """Seconds of a try; None if no gradients were taken."""
        part = trial.rows(torch.arange(clients or self._in_a_try(trial, strategy)))
        start = time.perf_counter()
        blocks = list(self._run(part, strategy))
        spent = time.perf_counter() - start
        return spent if sum(int(block.gradients.sum()) for block in blocks) else None

    def _kernel(self, name: str) -> Kernel:
        if name not in self._kernels:
            self._kernels[name] = self.problem.kernel(name)
        return self._kernels[name]

    def _pool(self, workers: int) -> ThreadPoolExecutor:
        if workers not in self._pools:
            self._pools[workers] = ThreadPoolExecutor(
                workers, "fedkin", initializer=torch.set_num_threads, initargs=(1,)
            )
        return self._pools[workers]


@contextmanager
def inner_threads(count: int) -> Iterator[None]:
    """So many threads inside an operation, and afterwards as many as before: what comes next,
    another method's engine too, finds all of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _choice(facts: Mapping[str, Any]) -> tuple[Variant, Strategy]:
    """A form of the problem and its chosen strategy."""
    about = dict(facts)
    strategy = Strategy.parse(str(about.pop("strategy", "")))
    return Variant(**about), strategy


def even(order: Tensor, most: int, workers: int) -> tuple[Tensor, ...]:
    """Blocks of about one size, none larger than `most`, as many for every worker."""
    turns = -(-len(order) // (most * workers))
    return order.tensor_split(max(1, min(len(order), turns * workers)))


def _sure(tries: Sequence[float], enough: float) -> bool:
    """Whether a candidate is as fast in every try, as on a free machine."""
    return len(tries) > 1 and max(tries) <= SURE * min(tries) and sum(tries) >= enough


def _others_wait(threads: int) -> bool:
    """Whether others and so many threads of ours want more cores than there are, at several moments
    (known on Linux only)."""
    if sys.platform != "linux":
        return False
    free = len(os.sched_getaffinity(0)) - threads
    for _ in range(MOMENTS):
        if _running_beside() <= free:
            return False
        time.sleep(0.001)
    return True


def _running_beside() -> int:
    """How many threads of other processes run, or could, at this moment."""
    everybody, own = 0, 0
    with suppress(OSError, IndexError):
        everybody = int(Path("/proc/loadavg").read_text("ascii").split()[3].partition("/")[0])
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            own += " R " in (task / "stat").read_text("ascii", "replace").rpartition(")")[2][:3]
    return everybody - own


def _rising(positions: Tensor) -> bool:
    return bool((positions == torch.arange(len(positions))).all())
