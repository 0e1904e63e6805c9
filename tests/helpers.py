"""Small problems with known answers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedkin.core.federation import Federation, parts
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.engines import make_engine
from fedkin.methods import Method, State


def line(dimension: int = 1, start: float = 0.0) -> nn.Module:
    """v -> v.x without a bias, starting at a constant."""
    module = nn.Linear(dimension, 1, bias=False)
    nn.init.constant_(module.weight, start)
    return module


def quadratic(xs: list[float], ys: list[float], start: float = 0.0, **options: Any) -> Problem:
    """Client i has one sample: f_i(v) = (x_i*v - y_i)^2 / 2, so g_i(v) = x_i*(x_i*v - y_i)."""
    parts = [(torch.tensor([[x]]), torch.tensor([y])) for x, y in zip(xs, ys, strict=True)]
    data = ClientData(Examples.of(parts), Examples.of(parts), None)
    return Problem(line(1, start), data, batch_size=1, dtype=torch.float64, **options)


def least_squares(
    clients: int = 4, samples: int = 8, dimension: int = 3, seed: int = 0, **options: Any
) -> Problem:
    """Different linear problems per client; batches are the whole data unless told otherwise."""
    g = torch.Generator().manual_seed(seed)
    parts = []
    for _ in range(clients):
        x = torch.randn(samples, dimension, generator=g, dtype=torch.float64)
        y = x @ torch.randn(dimension, generator=g, dtype=torch.float64) + 0.1
        parts.append((x, y))
    data = ClientData(Examples.of(parts), Examples.of(parts), None)
    options = {"batch_size": samples, "reshuffle": True} | options
    return Problem(line(dimension), data, dtype=torch.float64, **options)


def blobs(
    clients: int = 6, classes: int = 3, samples: int = 30, dimension: int = 5, seed: int = 0,
    shape: tuple[int, ...] | None = None,
) -> ClientData:  # fmt: skip
    """Easy classes: well-separated clouds of points, the same at every client."""
    g = torch.Generator().manual_seed(seed)
    centres = 4 * torch.randn(classes, dimension, generator=g)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, classes, (count,), generator=g)
        x = centres[y] + torch.randn(count, dimension, generator=g)
        return (x if shape is None else x.view(count, *shape)), y

    train = Examples.of([draw(samples + i) for i in range(clients)])
    return ClientData(train, Examples.of([draw(20) for _ in range(clients)]), classes)


def federation(
    problem: Problem, engine: str = "embedded", strategy: str = "stacked", **options: Any
) -> Federation:
    return Federation(problem, make_engine(engine, problem, strategy), **options)


def run(method: Method, fed: Federation, rounds: int) -> State:
    """Rounds 1 .. rounds of a method; the state afterwards."""
    state = method.init(fed)
    for number in range(1, rounds + 1):
        fed.begin_round(number)
        method.round(fed, state)
    return state


def further(method: Method, fed: Federation, state: State, rounds: int) -> State:
    """Rounds after those that the federation has seen."""
    for number in range(fed.round + 1, fed.round + 1 + rounds):
        fed.begin_round(number)
        method.round(fed, state)
    return state


def personal_models(method: Method, fed: Federation, state: State) -> Tensor:
    """Every client's personal model [N, d]; smaller ones are followed by zeros."""
    models = fed.problem.initial.new_zeros(fed.size, fed.problem.size)
    for request in parts(method.personal(fed, state)):
        rows = fed.look(request)["model"]
        models[request.at, : rows.shape[1]] = rows
    return models
