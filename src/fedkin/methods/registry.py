"""Methods by name."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

from fedkin.core.federation import Step
from fedkin.errors import FedkinError, unknown

if TYPE_CHECKING:
    from fedkin.methods.base import Method

_METHODS: dict[str, type[Method]] = {}
_SIZED: dict[str, str] = {}
# options that give clients models of different sizes
SIZES = frozenset(("rates", "capacity"))
M = TypeVar("M")


def register(name: str, sized: tuple[str, ...] = ()) -> Callable[[type[M]], type[M]]:
    """Class decorator: make a method available by name, and its module's steps to engines.

    `sized` names the methods of which this one is the form with models of different sizes.
    """

    def enter(cls: type[M]) -> type[M]:
        _METHODS[name] = cls  # type: ignore[assignment]
        _SIZED.update(dict.fromkeys(sized, name))
        cls.name = name  # type: ignore[attr-defined]
        return cls

    return enter


def methods() -> dict[str, type[Method]]:
    """All registered methods."""
    import fedkin.methods  # noqa: F401  (registers the built-in ones)

    return dict(sorted(_METHODS.items()))


def get_method(name: str) -> type[Method]:
    if name not in methods():
        raise unknown("method", name, methods())
    return _METHODS[name]


def with_rates(name: str) -> str:
    """The form of a method in which clients' models differ in size; itself, if it is one."""
    if "rates" in {f.name for f in fields(get_method(name))}:
        return name
    if name not in _SIZED:
        raise FedkinError(
            f"method '{name}' has no form with sub-models: rates go with {', '.join(_SIZED)}"
        )
    return _SIZED[name]


def form_for(name: str, options: Iterable[str]) -> str:
    """The form of a method that takes these options: with sub-models, where they give sizes."""
    return with_rates(name) if SIZES.intersection(options) else name


def step_modules() -> set[str]:
    """Modules whose functions clients may be asked to run: those that methods draw steps from."""
    found = {"fedkin.runs.evaluation"}
    for cls in methods().values():
        module = sys.modules[cls.__module__]
        found.add(cls.__module__)
        found |= {
            value.__module__
            for value in vars(module).values()
            if callable(value) and getattr(value, "__module__", "").startswith("fedkin.methods")
        }
    return found


def step_name(step: Step) -> str:
    """`package.module:function`."""
    return f"{step.__module__}:{step.__qualname__}"


def find_step(name: str) -> Step:
    """A step by its name: only plain functions of `client` in modules of registered methods."""
    module, _, function = name.partition(":")
    if module not in step_modules():
        raise FedkinError(f"step '{name}' belongs to no registered method")
    step = getattr(importlib.import_module(module), function, None)
    if (
        not inspect.isfunction(step)
        or next(iter(inspect.signature(step).parameters), "") != "client"
    ):
        raise FedkinError(f"'{name}' is not a step")
    found: Step = step
    return found
