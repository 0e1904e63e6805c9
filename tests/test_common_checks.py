"""What every registered method promises. A new method is checked without being named here."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from fedkin.core.client import Client
from fedkin.methods import FedAvg
from fedkin.methods.fedavg import local_sgd
from fedkin.methods.registry import add, all_methods, get_method
from fedkin.runs import checks
from fedkin.runs.checks import CHECKS, STRATEGIES, BrokenPromiseError, check_all

every_method = pytest.mark.parametrize("name", list(all_methods()))
every_check = pytest.mark.parametrize("promise", list(CHECKS))


@every_method
@every_check
def test_every_method_keeps_every_promise(
    name: str, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # every strategy with two of five methods, every method with two of five: `fedkin check` has all
    place = list(all_methods()).index(name)
    some = [STRATEGIES[(place + step) % len(STRATEGIES)] for step in (0, 2)]
    monkeypatch.setattr(checks, "STRATEGIES", some)
    if promise.startswith("it runs on every kind of model"):  # others meet the simpler ones
        for_images = {needs: models[-1:] for needs, models in checks.FAMILIES.items()}
        monkeypatch.setattr(checks, "FAMILIES", for_images)
    CHECKS[promise](get_method(name))


# the checks find what is wrong ---------------------------------------------------------------


@dataclass
class Broken(FedAvg):
    """FedAvg with something wrong in it."""

    def round(self, fed, s):
        mean = fed.mean(self.step(), at=fed.sample(), shared={"x": s.x}, lr=self.lr, **self.work)
        self.advance(s, mean["dx"], mean.answered)

    def step(self):
        return local_sgd


@dataclass
class Unseeded(Broken):
    """Draws numbers of its own."""

    def step(self):
        return noisy


@dataclass
class Mixing(Broken):
    """Lets clients of a block meet."""

    def step(self):
        return mixing


@dataclass
class Forgetful(Broken):
    """Remembers what no checkpoint has."""

    last: list = field(default_factory=list)

    def round(self, fed, s):
        super().round(fed, s)
        self.last.append(s.x)
        s.x = sum(self.last) / len(self.last)


@dataclass
class Greedy(Broken):
    """Asks everybody."""

    def round(self, fed, s):
        mean = fed.mean(local_sgd, shared={"x": s.x}, lr=self.lr, **self.work)
        self.advance(s, mean["dx"], mean.answered)


@dataclass
class Trusting(Broken):
    """Takes answers that did not arrive for answers."""

    def round(self, fed, s):
        r = fed.map(local_sgd, at=fed.sample(), shared={"x": s.x}, lr=self.lr, **self.work)
        s.x = s.x + r["dx"].mean(0) + 0.01  # the simplest model starts at zero


@dataclass
class Needy(Broken):
    strength: float = field(kw_only=True)


def noisy(client: Client, x, lr, **work):
    return {"dx": local_sgd(client, x, lr, **work)["dx"] + 0.01 * torch.randn_like(x)}


def mixing(client: Client, x, lr, **work):
    dx = local_sgd(client, x, lr, **work)["dx"]
    return {"dx": dx.amax(0, keepdim=True) + 0 * dx}  # a mean of means would not show


@pytest.mark.parametrize(
    ("cls", "promise"),
    [
        (Unseeded, "the same seed gives the same bits, another seed others"),
        (Mixing, "clients together and one by one give the same models"),
        (Forgetful, "a run that was stopped continues exactly"),
        (Greedy, "clients that are not asked do not work"),
        (Trusting, "a round in which nobody answers changes no model"),
        (Needy, "its settings have defaults, and each can be written in a config"),
        (Needy, "it says in its docstring what it is"),
    ],
)
def test_a_broken_promise_is_found(cls: type[FedAvg], promise: str) -> None:
    add(cls.__name__, cls)
    try:
        with pytest.raises(BrokenPromiseError):
            CHECKS[promise](cls)
    finally:
        all_methods.__globals__["_METHODS"].pop(cls.__name__)


def test_all_outcomes_are_told_though_one_check_crashes(monkeypatch) -> None:
    def crash(_):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("fedkin.runs.checks.CHECKS", {"a": lambda _: None, "b": crash})
    first, second = check_all(FedAvg)
    assert (first.promise, first.problem) == ("a", "")
    assert second.problem == "ZeroDivisionError: by nothing"
