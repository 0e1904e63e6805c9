"""How the embedded engine does a block of clients' work: which kernel, how many rows, who."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedkin.errors import FedkinError, unknown
from fedkin.kernels import KERNELS
from fedkin.problem import Problem

NAMES = ("auto", "stacked", "vmap", "threads", "autograd", "compiled")

# bytes of models and batches worked on together: around the size of a core's cache
BUDGETS = (1_500_000, 4_000_000, 8_000_000)


@dataclass(frozen=True)
class Strategy:
    """`kernel` for blocks of `block` clients on `workers` threads of one core each.

    One worker means the calling thread, with PyTorch's own threads inside operations.
    """

    kernel: str
    block: int
    workers: int = 1

    def __str__(self) -> str:
        return f"{self.kernel}:{self.block}:{self.workers}"

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """The opposite of str: `native:8:2`."""
        kernel, *numbers = text.split(":")
        if kernel not in (*KERNELS, "compiled"):
            raise unknown("strategy", text, NAMES)
        if len(numbers) != 2 or not all(n.isdigit() and int(n) > 0 for n in numbers):
            raise FedkinError(
                f"strategy '{text}' is not understood: write KERNEL:BLOCK:WORKERS, as in native:8:2"
            )
        return cls(kernel, int(numbers[0]), int(numbers[1]))


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
    sizes = block_sizes(problem, clients)
    found = []
    if native and not has_convolutions(problem):
        found += [Strategy("native", size) for size in sizes]
        if threads > 1:
            found += [
                Strategy("native", size, threads) for size in sizes if size * threads <= clients
            ]
    else:
        single = "native" if native else "autograd"
        found.append(Strategy(single, 1))
        if threads > 1 and clients > 1:
            found.append(Strategy(single, 1, threads))
        if not native:
            found.append(Strategy("vmap", sizes[len(sizes) // 2]))
    return found


def named(name: str, problem: Problem, clients: int, threads: int, block: int | None) -> Strategy:
    """The strategy a user asked for by name, sized for this problem."""
    single = "native" if problem.has_native() else "autograd"
    middle = block or block_sizes(problem, clients)[-2:][0]
    match name:
        case "stacked":
            return Strategy("native" if problem.has_native() else "vmap", middle)
        case "vmap" | "compiled":
            return Strategy(name, middle)
        case "threads":
            return Strategy(single, block or 1, threads)
        case "autograd":
            return Strategy("autograd", block or 1)
    if ":" in name:
        return Strategy.parse(name)
    raise unknown("strategy", name, NAMES)
