"""Methods by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TypeVar

from fedkin.core.steps import offer_steps
from fedkin.errors import FedkinError, unknown
from fedkin.methods.base import Method

_METHODS: dict[str, type[Method]] = {}
_SIZED: dict[str, str] = {}
# options that give clients models of different sizes
SIZES = frozenset(("rates", "capacity"))
M = TypeVar("M")


def register(name: str, sized: tuple[str, ...] = ()) -> Callable[[type[M]], type[M]]:
    """Class decorator: make a method available by name, and to engines the steps of its module
    and of those that hold the classes it builds on.

    `sized` names the methods of which this one is the form with models of different sizes.
    """

    def enter(cls: type[M]) -> type[M]:
        _METHODS[name] = cls  # type: ignore[assignment]
        _SIZED.update(dict.fromkeys(sized, name))
        cls.name = name  # type: ignore[attr-defined]
        for base in cls.__mro__:
            if issubclass(base, Method):
                offer_steps(base.__module__)
        return cls

    return enter


def all_methods() -> dict[str, type[Method]]:
    """All registered methods by name; importing `fedkin.methods` registers the built-in ones."""
    return dict(sorted(_METHODS.items()))


def get_method(name: str) -> type[Method]:
    """A method's class by its name."""
    if name not in _METHODS:
        raise unknown("method", name, all_methods())
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
