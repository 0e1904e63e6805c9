"""Small problems with known answers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.core.tables import Table
from fedkin.data.clients import ClientData, Examples
from fedkin.methods import Method, State
from fedkin.methods.registry import get_method
from fedkin.runs import checks
from fedkin.runs.checks import blobs, federation, personal_models, run
from fedkin.runs.training import Trainer

__all__ = ["assert_states_close", "blobs", "federation", "further", "least_squares", "line",
           "personal_models", "quadratic", "run"]  # fmt: skip


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
    options = {"batch_size": samples, "reshuffle": True, "dtype": torch.float64} | options
    return Problem(line(dimension), data, **options)


def further(method: Method, fed: Federation, state: State, rounds: int) -> State:
    """Rounds after those that the federation has seen."""
    for number in range(fed.round + 1, fed.round + 1 + rounds):
        fed.begin_round(number)
        method.round(fed, state)
    return state


def make_named(name: str, **options: object) -> Method:
    """A method by its name as the common checks make it: the same local work for all."""
    return checks.make(get_method(name), **options)


def goes_on_to_the_bit(
    trainer: Callable[[str], Trainer], stops: Collection[int], *tables: str
) -> None:
    """A run that is stopped after each of these rounds, and resumed, leaves what one in one piece
    leaves."""
    whole, halted = trainer("whole"), trainer("halted")
    assert whole.folder is not None
    assert halted.folder is not None
    whole.run()
    for number in range(1, max(stops) + 1):
        halted.step()
        if number in stops:
            halted = Trainer(halted.problem, halted.method, halted.settings, halted.folder)
            assert halted.resume() == []
    halted.run()
    assert halted.folder is not None
    left, wanted = halted.folder.path, whole.folder.path
    for path in (*(wanted / "models").iterdir(), *(wanted / name for name in tables)):
        assert path.read_bytes() == (left / path.relative_to(wanted)).read_bytes()


def assert_states_close(found: State, expected: State, tolerance: float, rtol: float = 0.0) -> None:
    """That what a method's server keeps is the same in two runs, models in tables too."""
    for name, value in vars(expected).items():
        own = getattr(found, name)
        if isinstance(value, Table):
            everything = torch.arange(value.count)
            own, value = own.read(everything), value.read(everything)
        if isinstance(value, Tensor):
            torch.testing.assert_close(own, value, rtol=rtol, atol=tolerance)
        else:
            assert own == value, name
