"""Federated learning as textbooks write it: a module per client, torch.optim, loops."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.methods import Method
from tests.helpers import federation, personal_models, run

SIZES = (4, 9, 30, 13)  # clients of very different sizes
LR, STEPS, ROUNDS = 0.1, 3, 4


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    middle = [nn.LayerNorm(4)] if norm else []
    return nn.Sequential(nn.Linear(3, 4), *middle, nn.Tanh(), nn.Linear(4, 2)).double()


def problem(norm: bool = False) -> Problem:
    """Clients whose labels come from rules of their own; minibatches are all of a client's data."""
    g, parts = torch.Generator().manual_seed(1), []
    for size in SIZES:
        x = torch.randn(size, 3, generator=g, dtype=torch.float64)
        parts.append((x, (x @ torch.randn(3, generator=g, dtype=torch.float64) > 0).long()))
    data = ClientData(Examples.of(parts), Examples.of(parts), 2)
    whole = {"batch_size": max(SIZES), "reshuffle": True, "dtype": torch.float64}
    return Problem(network(norm), data, **whole)


def loss_of(task: Problem, client: int, module: nn.Module) -> Tensor:
    x, y = task.data.train[client]
    return nn.functional.cross_entropy(module(x), y)


def descend(
    task: Problem, client: int, module: nn.Module, steps: int = STEPS, only: Sequence[str] = ("",),
    bend: Callable[[nn.Module], None] | None = None,
) -> nn.Module:  # fmt: skip
    """A trained copy: SGD on the parameters whose names begin so; `bend` changes gradients."""
    module = copy.deepcopy(module)
    chosen = [p for name, p in module.named_parameters() if name.startswith(tuple(only))]
    optimiser = torch.optim.SGD(chosen, lr=LR)
    for _ in range(steps):
        module.zero_grad()
        loss_of(task, client, module).backward()
        if bend:
            bend(module)
        optimiser.step()
    return module


def mean(modules: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The mean of the modules' parameters by name."""
    states = [module.state_dict() for module in modules]
    return {name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]}


def load(module: nn.Module, values: dict[str, Tensor], only: Sequence[str] = ("",)) -> nn.Module:
    """A copy of the module with some of the values."""
    module = copy.deepcopy(module)
    chosen = {name: v for name, v in values.items() if name.startswith(tuple(only))}
    module.load_state_dict(chosen, strict=False)
    return module


def flat(modules: Sequence[nn.Module]) -> Tensor:
    return torch.stack([nn.utils.parameters_to_vector(m.parameters()).detach() for m in modules])


def asked(task: Problem, fraction: float) -> list[list[int]]:
    """Who takes part in each round."""
    fed, found = federation(task, fraction=fraction), []
    for number in range(1, ROUNDS + 1):
        fed.begin_round(number)
        found.append(fed.sample().tolist())
    return found


def ours(method: Method, task: Problem, fraction: float) -> Tensor:
    """Everybody's model after the same rounds by the method."""
    fed = federation(task, fraction=fraction)
    state = run(method, fed, ROUNDS)
    return personal_models(method, fed, state)
