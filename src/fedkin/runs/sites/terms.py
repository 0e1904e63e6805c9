"""What a run announced to a site, and whether a request is part of it.

From the announced method follow the steps that its server part can ask for, so that anything
else is refused, however harmless: no other method's steps, no other numbers than the announced
ones, no random keys but those that the announced seed gives.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from fedkin.core import rng
from fedkin.core.federation import AFTER, Step
from fedkin.core.metrics import BUILT_IN
from fedkin.core.steps import find_step, is_step, step_name
from fedkin.core.variants import Variant
from fedkin.engines.flower.store import RequestPosition
from fedkin.engines.flower.text import shown
from fedkin.methods.base import Method, use
from fedkin.runs.contender import local_like
from fedkin.runs.evaluation import MOST_RESAMPLES, judge, trivial
from fedkin.runs.norms import complete, settle
from fedkin.runs.sites.policy import PolicyError, SitePolicy
from fedkin.runs.sites.private import AnnouncedPrivacy
from fedkin.runs.together import addable

# an argument of those parts of a method that are for newcomers, not used in a run over sites
NEWCOMERS = "new"
# arguments of evaluations that are names, and those they may be
LISTED = {"part": {"train", "test", "validation"}, "metrics": set(BUILT_IN)}
# arguments that are the shape of what is sent, or none
SHAPES = {"sketch"}
MOST_STARTS, MOST_CALLS = 10**6, 10**6
# evaluation: what it adds to the arguments of the step that makes a model
OF_EVALUATION = {"make", "how", "part", "metrics", "resamples", "place", "norm_statistics"}
EVALUATION = frozenset(step_name(step) for step in (judge, trivial, settle, addable))


@dataclass(frozen=True)
class StepsOf:
    """The steps of one method: those of its rounds, those it asks for without leaving a trace,
    and those that make a client's model."""

    method: Method
    work: frozenset[str]
    looks: frozenset[str]
    models: frozenset[str]

    @classmethod
    def of(cls, method: Method) -> StepsOf:
        work, looks, models = set[str](), set[str](), {step_name(use)}
        for name, function in _functions(type(method)):
            found = {step_name(step) for step in _steps(function, set())}
            (models if name == "personal" else work).update(found)
            looks |= found if "look" in _names(function.__code__) else set()
        return cls(method, frozenset(work), frozenset(looks), frozenset(models))


@dataclass
class Terms:
    """The requests of one run that a site has agreed to."""

    methods: dict[str, StepsOf]
    rounds: int
    seed: int
    policy: SitePolicy
    parameters: int
    client: int | None = None  # this site's number among the clients, always the same
    resampled: int = 0
    privacy: AnnouncedPrivacy | None = None
    shares: int | None = None  # sites that add the noise of a sum together, where sites do

    @classmethod
    def of(
        cls, method: Method, baseline: bool, rounds: int, seed: int, policy: SitePolicy, size: int
    ) -> Terms:
        methods = {"method": StepsOf.of(method)}
        if baseline:
            methods["local"] = StepsOf.of(local_like(method))
        return cls(methods, rounds, seed, policy, size)

    def check(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Raise a PolicyError for a request that is not part of the run agreed to."""
        try:
            self._check(tensors, facts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            kind = type(error).__name__
            raise PolicyError(f"something that cannot be understood ({kind})") from None

    def _check(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        who = self.methods.get(facts["contender"])
        if who is None:
            raise PolicyError(f"a request about '{shown(facts['contender'], 40)}'")
        self._check_place(facts)
        # what a site writes to its own file at the end does not leave it
        leaves = facts["remember"] and facts["kind"] != "finish"
        if self.privacy is not None and leaves and facts["contender"] == "method":
            self.privacy.check(facts, self.shares)
        step, hyper = facts["step"], facts["hyper"]
        # evaluations name the step they add up, and the step that makes the model
        how, made = hyper.get("how"), hyper.get("make")
        if facts["kind"] == "finish":
            allowed = who.models | {step_name(complete)}
        elif facts["remember"] is False:
            allowed = who.looks | EVALUATION
        else:
            allowed = who.work
        chain = {step: allowed, how: EVALUATION, made: who.models}
        steps = [name for name in chain if name is not None]
        wrong = next((name for name in steps if name not in chain[name]), None)
        if wrong is not None:
            raise PolicyError(
                f"the step '{shown(wrong, 80)}', which {who.method.name} does not ask for here"
            )
        self._check_arguments(who, {**tensors, **hyper}, steps)
        for name, value in tensors.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise PolicyError(f"'{shown(name, 40)}' with numbers that are not finite")
        rate = Variant(**facts["variant"]).rate
        if not 0 < float(rate) <= 1:
            raise PolicyError(f"a model of {shown(rate, 40)} times its size")
        if hyper.get("resamples"):
            self.resampled += 1
            if self.resampled > self.policy.most_resampled:
                raise PolicyError(f"more than {self.policy.most_resampled} resampled evaluations")

    def _check_place(self, facts: dict[str, Any]) -> None:
        """Its round is one of the run's, and its random key follows from the seed agreed to."""
        place, client = RequestPosition(*facts["place"]), facts["client"]
        whole = [*place, client, facts["key"]]
        if not all(type(number) is int and number >= 0 for number in whole):
            raise PolicyError("a request whose place is not made of whole numbers")
        if place.round > self.rounds or place.start > MOST_STARTS:
            raise PolicyError(f"round {place.round} of a run of {self.rounds} rounds")
        if place.call % AFTER > MOST_CALLS or client > MOST_CALLS:
            raise PolicyError(f"request {place.call} of a round")
        if self.client is None:
            self.client = client
        if client != self.client:
            raise PolicyError(f"this site as client {client}, after it was client {self.client}")
        if facts["key"] != int(rng.key(self.seed, place.round, place.call, client)[0]):
            raise PolicyError("a random key that does not follow from the seed agreed to")

    def _check_arguments(self, who: StepsOf, given: dict[str, Any], steps: list[str]) -> None:
        """Tensors by the names that a step has for them, numbers by those or, where it passes
        on any, as it likes; numbers that were announced as they were announced."""
        settings: dict[str, Any] = {}
        if steps[0] in who.work:
            settings = {f.name: getattr(who.method, f.name) for f in fields(who.method)}
        known, anything = (set(OF_EVALUATION) if len(steps) > 1 else set[str]()), False
        for name in steps:
            for p in list(inspect.signature(find_step(name)).parameters.values())[1:]:
                known.add(p.name)
                anything |= p.kind is p.VAR_KEYWORD and name == steps[-1]
        for name, value in given.items():
            many = isinstance(value, Tensor) and value.numel() != 1
            if name not in known and (many or not anything or not name.isidentifier()):
                raise PolicyError(f"the argument '{shown(name, 40)}' of {steps[-1]}")
            if not isinstance(value, Tensor):
                self._check_value(name, value, settings)
            elif not many:  # a number of this site's own
                self._check_value(name, value.item(), {})

    def _check_value(self, name: str, value: Any, settings: dict[str, Any]) -> None:
        announced = settings.get(name)
        good = value is None or isinstance(value, bool)
        if isinstance(value, str):
            good = len(value) <= 1000
        elif name in SHAPES and isinstance(value, list | tuple):
            good = len(value) <= 1 and all(type(n) is int and 0 < n <= 1e6 for n in value)
        elif isinstance(value, int | float) and not good:
            counts = name.endswith(("steps", "epochs", "batches"))
            most = self.policy.most_steps if counts else max(1e12, self.parameters)
            good = abs(value) <= most
            if name == "lr" and isinstance(announced, float):
                good = 0 < value <= announced * (1 + 1e-9)  # schedules only lower it
            elif isinstance(announced, int | float):
                good = good and value == announced
        if name in LISTED:
            good = isinstance(value, str) and set(value.splitlines()) <= LISTED[name]
        if name == "resamples":
            good = type(value) is int and 0 <= value <= MOST_RESAMPLES
        if not good:
            more = "" if announced is None else f", and {announced} was announced"
            raise PolicyError(f"{shown(name, 40)} = {shown(value, 60)}{more}")


def _functions(cls: type[Method]) -> Iterator[tuple[str, FunctionType]]:
    """Functions of a method's class by name; those they extend by super() too."""
    for name in dir(cls):
        for base in cls.__mro__:
            if name not in vars(base) or not issubclass(base, Method):
                continue
            found = vars(base)[name]
            found = found.fget if isinstance(found, property) else found
            found = getattr(found, "__func__", found)
            if not isinstance(found, FunctionType):
                break
            if NEWCOMERS in inspect.signature(found).parameters:
                break
            yield name, found
            if "super" not in found.__code__.co_names:
                break


def _steps(function: FunctionType, seen: set[FunctionType]) -> Iterator[Step]:
    """Steps that a function of the server part names, by itself or in functions it calls."""
    seen.add(function)
    named = [function.__globals__.get(name) for name in _names(function.__code__)]
    for value in (*named, *(function.__defaults__ or ())):
        if value is not None and is_step(value):
            yield value
        elif isinstance(value, FunctionType) and value not in seen:
            yield from _steps(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
