"""Clients by the module they have, where they bring modules of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedkin.core.problem import Problem
from fedkin.core.variants import PLAIN, Variant


def parameters(module: nn.Module) -> int:
    """What a device carries with a module; frozen parameters count too."""
    return sum(p.numel() for p in module.parameters())


def own_sizes(problem: Problem) -> Tensor:
    """How many parameters every client's own module has: [N]."""
    brought = problem.architectures
    modules = [problem.spec.module, *(brought.modules.values() if brought else ())]
    return torch.tensor([parameters(module) for module in modules])[own_kinds(problem)]


def own_kinds(problem: Problem) -> Tensor:
    """Which module every client has: [N], 0 for the problem's own."""
    brought = problem.architectures
    none = torch.zeros(problem.num_clients, dtype=torch.int64)
    return none if brought is None else brought.kinds.clone()


def by_model(
    problem: Problem, clients: Tensor, form: Variant = PLAIN
) -> Iterator[tuple[Variant, Tensor]]:
    """Clients by the module they have: its form of the problem, and places among `clients`."""
    brought = problem.architectures
    if brought is None:
        yield form, torch.arange(len(clients))
        return
    names, kinds = ["", *brought.modules], brought.kinds[clients]
    for kind in kinds.unique().tolist():
        yield replace(form, module=names[kind]), (kinds == kind).nonzero()[:, 0]
