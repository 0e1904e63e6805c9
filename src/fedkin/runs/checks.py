"""What every method promises, checked by running it on small problems.

`fedkin check NAME` runs these checks on a method, and so do the tests on every method there is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkin.core.faults import Faults
from fedkin.core.federation import Federation, parts
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.engines import Wire, make_engine
from fedkin.errors import FedkinError
from fedkin.methods import Method, State
from fedkin.models import build
from fedkin.runs.evaluation import score
from fedkin.runs.folder import RunFolder
from fedkin.runs.settings import Settings
from fedkin.runs.training import Trainer
from fedkin.runs.validation import options_model

Check = Callable[[type[Method]], None]
CHECKS: dict[str, Check] = {}

# the strategies of the embedded engine that must agree with native:3:1x1
STRATEGIES = ("native:2:1x1", "native:5:1x1", "vmap:3:1x1", "native:1:2x1", "autograd:1:2x1")
CLASSES, CHANCE = 3, 1 / 3


class BrokenPromiseError(Exception):
    """A check that failed: what the method did, in a sentence."""


def promise(kept: bool, sentence: str) -> None:
    if not kept:
        raise BrokenPromiseError(sentence)


def check(title: str) -> Callable[[Check], Check]:
    """Add a check under the promise that it is of."""

    def enter(function: Check) -> Check:
        CHECKS[title] = function
        return function

    return enter


@dataclass(frozen=True)
class Outcome:
    """A promise, and what broke it, if anything did."""

    promise: str
    problem: str = ""


def check_all(cls: type[Method]) -> Iterator[Outcome]:
    """Run all checks on a method."""
    for title, function in CHECKS.items():
        try:
            function(cls)
        except (BrokenPromiseError, FedkinError) as error:
            yield Outcome(title, str(error))
        except Exception as error:  # whatever a user's method does wrong
            reason = (str(error).splitlines() or [""])[0]
            yield Outcome(title, f"{type(error).__name__}: {reason}")
        else:
            yield Outcome(title)


# small problems --------------------------------------------------------------------------


def blobs(
    clients: int = 6, classes: int = CLASSES, samples: int = 30, dimension: int = 5, seed: int = 0,
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


# by what a method needs of a model (Method.needs): the simplest, a usual one, one for images
FAMILIES: dict[str, tuple[str, ...]] = {
    "": ("logistic", "mlp:8", "cnn:2,3,8"),
    "layers": ("mlp:4", "mlp:8", "cnn:2,3,8"),
    "norms": ("mlp-norm:4", "mlp-norm:8", "cnn-norm:2,3,8"),
}


@cache
def problem(
    model: str = "logistic", dtype: torch.dtype = torch.float32, clients: int = 5
) -> Problem:
    """Five clients with easy classes and a small model."""
    images = "cnn" in model
    shape = (1, 8, 8) if images else (5,)
    data = blobs(clients=clients, samples=20, dimension=64 if images else 5, shape=shape)
    return Problem(build(model, shape, CLASSES, seed=1), data, batch_size=6, dtype=dtype)


def families(cls: type[Method]) -> tuple[str, ...]:
    """The models to check a method with."""
    return FAMILIES[cls.needs]


def usual(cls: type[Method]) -> str:
    """A usual model for a method: small, with a hidden layer."""
    return families(cls)[1]


def easy(cls: type[Method]) -> Problem:
    """The simplest model, or the least that a method can cut."""
    return problem(families(cls)[1 if "rates" in {f.name for f in fields(cls)} else 0])


def make(cls: type[Method], **options: object) -> Method:
    """A method with its defaults, but the same local work for all that have a choice."""
    common = {"lr": 0.05, "local_steps": 4}
    known = {f.name for f in fields(cls)}
    return cls(**{k: v for k, v in {**common, **options}.items() if k in known})


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


def personal_models(method: Method, fed: Federation, state: State) -> Tensor:
    """Every client's personal model [N, d]; smaller ones are followed by zeros."""
    models = fed.problem.initial.new_zeros(fed.size, fed.problem.size)
    for request in parts(method.personal(fed, state)):
        rows = fed.look(request)["model"]
        models[request.at, : rows.shape[1]] = rows
    return models


def same(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    promise(found.shape == expected.shape, f"{what}: models have other shapes")
    gap = float((found - expected).abs().max())
    promise(gap <= tolerance, f"{what}: models differ by {gap:.2g}, more than {tolerance:g}")


# the promises ----------------------------------------------------------------------------


@check("its settings have defaults, and each can be written in a config")
def settings_are_options(cls: type[Method]) -> None:
    for name, column in options_model(cls).model_fields.items():
        promise(not column.is_required(), f"setting {name} has no default")
    make(cls).check()


@check("it says in its docstring what it is")
def has_a_docstring(cls: type[Method]) -> None:
    own = "__doc__" in vars(cls) and not (cls.__doc__ or "").startswith(f"{cls.__name__}(")
    promise(own and bool((cls.__doc__ or "").strip()), "its class has no docstring of its own")


@check("it runs on every kind of model and scores every client")
def runs_on_every_model(cls: type[Method]) -> None:
    for model in dict.fromkeys(families(cls)):
        rounds = Settings(rounds=2, eval_every=1, baseline=False, strategy="stacked")
        whole = {"rates": (1.0,)} if model == "logistic" else {}  # it has nothing to cut
        result = Trainer(problem(model), make(cls, **whole), rounds).run()
        last = result.clients[result.clients["round"] == 2]
        promise(len(last) == 5, f"{model}: {len(last)} of 5 clients have scores")
        known = last["personal_accuracy"].between(0, 1).all()
        promise(bool(known), f"{model}: some clients' accuracy is not known")


@check("it learns easy classes")
def beats_chance(cls: type[Method]) -> None:
    settings = Settings(rounds=40, eval_every=40, baseline=False, strategy="stacked")
    found = Trainer(easy(cls), make(cls), settings).run().accuracy
    promise(found > 0.6, f"accuracy {found:.0%} after 40 rounds, where chance is {CHANCE:.0%}")


@check("clients that are not asked do not work")
def leaves_the_others_alone(cls: type[Method]) -> None:
    fed, method = federation(easy(cls), fraction=0.2), make(cls)
    run(method, fed, 1)
    busy = int((fed.accounts.column("gradients") > 0).sum())
    promise(busy <= 1, f"{busy} of 5 clients computed gradients where 1 was to take part")


@check("lost and broken answers never break a model")
def survives_faults(cls: type[Method]) -> None:
    fed, method = federation(easy(cls), faults=Faults(drop=0.3, nan=0.3)), make(cls)
    state = run(method, fed, 6)
    finite = torch.isfinite(score(fed, method.personal(fed, state)).loss).all()
    promise(bool(finite), "after answers were lost or NaN, some models are not finite")


@check("a round in which nobody answers changes no model")
def silence_changes_nothing(cls: type[Method]) -> None:
    fed, method = federation(easy(cls), faults=Faults(drop=1.0)), make(cls)
    state = run(method, fed, 2)
    fresh = federation(easy(cls))
    begun = method.init(fresh)
    for each in (fed, fresh):
        each.begin_round(99)  # the same randomness for methods that adapt before use
    before = personal_models(method, fresh, begun)
    same(personal_models(method, fed, state), before, 1e-5, "two rounds without answers")
    promise(float(fed.accounts.table.sum()) == 0, "costs were counted though nobody answered")


@check("the same seed gives the same bits, another seed others")
def seeds_decide(cls: type[Method]) -> None:
    def models(seed: int) -> Tensor:
        fed, method = federation(problem(usual(cls)), seed=seed, fraction=0.6), make(cls)
        return personal_models(method, fed, run(method, fed, 3))

    first = models(1)
    promise(torch.equal(first, models(1)), "two runs with one seed differ: take random numbers "
            "from client.uniform and fed.random only")  # fmt: skip
    promise(not torch.equal(first, models(2)), "runs with different seeds are the same")


def expected_outcome(cls: type[Method]) -> Tensor:
    """What clients in blocks of three come to, which others are compared with."""
    if cls not in _expected:
        _expected[cls] = outcome(cls, "embedded", "native:3:1x1")
    return _expected[cls]


_expected: dict[type[Method], Tensor] = {}


def outcome(cls: type[Method], engine: str, strategy: str) -> Tensor:
    """Personal models after three rounds with three of five clients each, in double precision."""
    fed = federation(problem(usual(cls), torch.float64), engine, strategy, fraction=0.6, seed=3)
    method = make(cls)
    return personal_models(method, fed, run(method, fed, 3))


@check("clients together and one by one give the same models")
def strategies_agree(cls: type[Method]) -> None:
    expected = expected_outcome(cls)
    for strategy in STRATEGIES:
        same(outcome(cls, "embedded", strategy), expected, 1e-10, f"strategy {strategy}")


@check("messages as bytes give the same models")
def wire_agrees(cls: type[Method]) -> None:
    same(outcome(cls, "wire", ""), expected_outcome(cls), 1e-10, "engine wire")


@check("the bytes counted are those that travel")
def bytes_are_counted(cls: type[Method]) -> None:
    wired, stacked = federation(easy(cls), "wire"), federation(easy(cls))
    for fed in (wired, stacked):
        run(make(cls), fed, 3)
    engine = wired.engine
    assert isinstance(engine, Wire)
    down, up = (wired.accounts.total(f"bytes_{way}") for way in ("down", "up"))
    promise(engine.payload_down == down, f"{engine.payload_down} bytes sent, {down} counted")
    promise(engine.payload_up == up, f"{engine.payload_up} bytes came back, {up} counted")
    alike = torch.equal(wired.accounts.table, stacked.accounts.table)
    promise(alike, "the engines wire and embedded count other costs")


@check("a run that was stopped continues exactly")
def resumes_exactly(cls: type[Method]) -> None:
    with tempfile.TemporaryDirectory() as place:

        def trainer(folder: str) -> Trainer:
            settings = Settings(
                rounds=4, checkpoint_every=2, eval_every=2, baseline=False,
                strategy="native:3:1x1",
            )  # fmt: skip
            kept = RunFolder.create(Path(place) / folder, 'method = "checked"\n')
            return Trainer(problem(usual(cls)), make(cls), settings, kept)

        whole, halted = trainer("whole"), trainer("halted")
        whole.run()
        halted.step()
        halted.step()
        again = Trainer(problem(usual(cls)), make(cls), halted.settings, halted.folder)
        again.resume()
        again.run()
        first, second = Path(place) / "whole", Path(place) / "halted"
        for file in ("metrics.csv", "clients.csv"):
            a, b = (without_clocks((folder / file).read_text()) for folder in (first, second))
            promise(a == b, f"{file} differs from that of an uninterrupted run")
        for path in (first / "models").iterdir():
            equal = path.read_bytes() == (second / "models" / path.name).read_bytes()
            promise(equal, f"models/{path.name} differs from that of an uninterrupted run: all "
                    "that changes between rounds must be in State or kept by clients")  # fmt: skip


def without_clocks(text: str) -> list[list[str]]:
    """csv rows without columns that hold wall-clock seconds."""
    rows = [line.split(",") for line in text.splitlines()]
    kept = [i for i, title in enumerate(rows[0]) if not title.endswith("_seconds")]
    return [[row[i] for i in kept] for row in rows]
