"""How the embedded engine computes: which kernel, clients per block, threads."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from torch import nn

from fedkin.core.kernels import KERNELS
from fedkin.core.problem import Problem
from fedkin.errors import FedkinError, unknown

MOST_CLIENTS, MOST_THREADS = 10**9, 256  # of a block and of a machine
NAMES = ("auto", "stacked", "vmap", "threads", "autograd")

# bytes of models and batches worked on together: around the size of a core's cache
BUDGETS = (2_000_000, 5_000_000, 16_000_000)


@dataclass(frozen=True)
class Strategy:
    """`kernel` for blocks of `block` clients on `workers` threads with `inner` cores each.

    One worker means the calling thread; `inner` is PyTorch's number of threads inside
    an operation.
    """

    kernel: str
    block: int
    workers: int = 1
    inner: int = 1

    def __str__(self) -> str:
        return f"{self.kernel}:{self.block}:{self.workers}x{self.inner}"

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """The opposite of str: `native:8:2x1`."""
        found = re.fullmatch(r"([a-z]+):([1-9]\d*):([1-9]\d*)x([1-9]\d*)", text)
        if not found:
            raise FedkinError(
                f"strategy '{text}' is not understood: write KERNEL:BLOCK:WORKERSxCORES, "
                "as in native:8:2x1"
            )
        if found[1] not in KERNELS:
            raise unknown("kernel", found[1], KERNELS)
        block, workers, inner = (int(number[:12]) for number in found.groups()[1:])
        if block > MOST_CLIENTS or workers * inner > max(MOST_THREADS, os.cpu_count() or 1):
            raise FedkinError(
                f"strategy '{text[:60]}' has blocks of more than {MOST_CLIENTS} clients or more "
                f"than {MOST_THREADS} threads: write fewer"
            )
        return cls(found[1], block, workers, inner)


def block_sizes(problem: Problem, clients: int) -> list[int]:
    """Block sizes worth trying: models and batches of a block fit in some level of cache."""
    example = problem.train.x[0]
    row = problem.size * problem.initial.element_size()
    row += problem.batch_size * example.numel() * example.element_size()
    return sorted({min(clients, max(1, budget // row)) for budget in BUDGETS})


def has_convolutions(problem: Problem) -> bool:
    return any(
        isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        for part in problem.spec.module.modules()
    )


def candidates(problem: Problem, clients: int, threads: int) -> list[Strategy]:
    """What `auto` times: stacked blocks, and one block per core; convolutions one client each."""
    native = problem.has_native()
    kernel = "native" if native else "autograd"
    sizes = [1] if has_convolutions(problem) or not native else block_sizes(problem, clients)
    found = [Strategy(kernel, size) for size in sizes]
    if threads > 1:
        found += [Strategy(kernel, size, 1, threads) for size in sizes]
        found += [Strategy(kernel, size, threads) for size in sizes if size < clients]
    if not native and problem.stacks:
        larger = block_sizes(problem, clients)[-2:]
        found += [Strategy("vmap", size, 1, threads) for size in larger]
        if 1 < threads < clients:  # as many clients per core as there are, or fit
            found.append(Strategy("vmap", min(larger[-1], -(-clients // threads)), threads))
    return found


def without_gradients(problem: Problem, clients: int, threads: int) -> Strategy:
    """Used before a strategy is chosen, for requests without gradients such as evaluation."""
    first = candidates(problem, clients, 1)[0]
    return replace(first, workers=threads) if has_convolutions(problem) else first


def named(name: str, problem: Problem, clients: int, threads: int, block: int | None) -> Strategy:
    """The strategy a user asked for by name, sized for this problem."""
    native = problem.has_native()
    middle = block or block_sizes(problem, clients)[-2:][0]
    match name:
        case "stacked":
            kernel = "native" if native else "vmap" if problem.stacks else "autograd"
            return Strategy(kernel, middle, 1, threads)
        case "vmap":
            if not problem.stacks:
                raise FedkinError(
                    "the model cannot be stacked by vmap: choose strategy auto, threads or autograd"
                )
            return Strategy("vmap", middle, 1, threads)
        case "threads":
            return Strategy("native" if native else "autograd", block or 1, threads)
        case "autograd":
            return Strategy("autograd", block or 1, 1, threads)
    check_name(name)
    return Strategy.parse(name)


def check_name(name: str) -> None:
    """Raise if this is neither the name of a strategy nor KERNEL:BLOCK:WORKERSxCORES."""
    if ":" in name:
        Strategy.parse(name)
    elif name not in NAMES:
        raise unknown("strategy", name, NAMES)
