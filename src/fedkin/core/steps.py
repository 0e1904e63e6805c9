"""Steps by name: which functions clients may be asked to run when a request arrives as text."""

from __future__ import annotations

import importlib
import inspect
import sys
from functools import cache
from typing import Any

from fedkin.core.federation import Step
from fedkin.errors import FedkinError

# modules that offer steps: those of registered methods, and the one that evaluates models
_offering: set[str] = set()
# functions of modules that this process cannot import, lent by the process that asks for them
_lent: dict[str, Step] = {}


def offer_steps(module: str) -> None:
    """Let clients run the steps that a module defines or imports."""
    _offering.add(module)
    step_modules.cache_clear()


def offering() -> list[str]:
    """The modules that offer steps here, by name."""
    return sorted(_offering)


def lend_step(name: str, step: Step) -> None:
    """Let clients of this process run a step that another one has sent along."""
    if not is_step(step):
        raise FedkinError(f"'{name}' is not a step")
    _lent[name] = step


@cache
def step_modules() -> frozenset[str]:
    """Modules whose functions clients may be asked to run."""
    return frozenset(_offering) | {
        value.__module__
        for module in _offering
        for value in vars(sys.modules[module]).values()
        if is_step(value) and value.__module__.startswith("fedkin.")
    }


def is_step(value: Any) -> bool:
    """Whether something is a plain function whose first argument is `client`."""
    return inspect.isfunction(value) and next(iter(inspect.signature(value).parameters), "") == (
        "client"
    )


def step_name(step: Step) -> str:
    """`package.module:function`."""
    return f"{step.__module__}:{step.__qualname__}"


def find_step(name: str) -> Step:
    """A step by its name: only plain functions of `client` in modules of registered methods."""
    if name in _lent:
        return _lent[name]
    module, _, function = name.partition(":")
    if module not in step_modules():
        step_modules.cache_clear()  # a module may have imported more since
    if module not in step_modules():
        raise FedkinError(f"step '{name}' belongs to no registered method")
    step = getattr(importlib.import_module(module), function, None)
    if step is None or not is_step(step):
        raise FedkinError(f"'{name}' is not a step")
    found: Step = step
    return found
