"""Methods by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from fedkin.core.steps import offer_steps
from fedkin.errors import FedkinError, unknown
from fedkin.methods.base import Method

# the group of entry points by which packages offer methods
GROUP = "fedkin.methods"
_METHODS: dict[str, type[Method]] = {}
_SIZED: dict[str, str] = {}
_WITH_MODELS: dict[str, str] = {}
# options that give clients models of different sizes, or of different architectures
SIZES = frozenset(("rates", "capacity"))
MODELS = frozenset(
    f"{table}{key}" for table in ("", "model.") for key in ("model_column", "client_models")
)
M = TypeVar("M")


def register(
    name: str, sized: tuple[str, ...] = (), models: tuple[str, ...] = ()
) -> Callable[[type[M]], type[M]]:
    """Class decorator: make a method available by name, and to engines the steps of its module
    and of those that hold the classes it builds on.

    `sized` names the methods of which this one is the form with models of different sizes,
    `models` those of which it is the form with modules of clients' own.
    """

    def enter(cls: type[M]) -> type[M]:
        there = _METHODS.get(name)
        ours = there is not None and there.__module__.startswith("fedkin.")
        if ours and there.__module__ != cls.__module__:
            raise FedkinError(
                f"fedkin has a method '{name}' already: give {cls.__name__} another name"
            )
        _SIZED.update(dict.fromkeys(sized, name))
        _WITH_MODELS.update(dict.fromkeys(models, name))
        cls.name = name  # type: ignore[attr-defined]
        return add(name, cls)

    return enter


def add(name: str, cls: type[M]) -> type[M]:
    """Make a class available under a name, and its steps to engines; checks what it is."""
    if not isinstance(cls, type) or not issubclass(cls, Method):
        raise FedkinError(f"'{name}' is not a method: make it a subclass of fedkin.methods.Method")
    for part in ("init", "round", "personal"):
        if getattr(cls, part) is getattr(Method, part):
            raise FedkinError(f"method '{name}' is not whole: its class defines no {part}")
    if "name" not in vars(cls):
        cls.name = name
    _METHODS[name] = cls
    for base in cls.__mro__:
        if issubclass(base, Method):
            offer_steps(base.__module__)
    return cls


def all_methods() -> dict[str, type[Method]]:
    """The methods of this package by name, and what else was registered."""
    return dict(sorted(_METHODS.items()))


def of_packages() -> dict[str, EntryPoint]:
    """Methods that other installed packages offer."""
    return {point.name: point for point in entry_points(group=GROUP)}


def get_method(name: str) -> type[Method]:
    """A method's class by its name."""
    if name not in _METHODS:
        offered = of_packages()
        if name not in offered:
            raise unknown("method", name, {*_METHODS, *offered})
        add(name, from_package(offered[name], "method"))
    return _METHODS[name]


def from_package(point: EntryPoint, what: str) -> Any:
    """What an entry point stands for."""
    try:
        return point.load()
    except Exception as error:
        raise FedkinError(
            f"{what} '{point.name}' of the package {point.dist.name if point.dist else '?'} cannot "
            f"be imported: {type(error).__name__}: {error}"
        ) from None


def has_sizes(name: str) -> bool:
    """Whether clients of this method have models of different sizes."""
    return name in _SIZED.values()


def goes_alone(name: str) -> bool:
    """Whether this is local-only training, with models of one size or of several."""
    return name in ("local", _SIZED.get("local"))


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
    """The form of a method that takes these options: with sub-models, where they give sizes, or
    with modules of clients' own."""
    given = set(options)
    if not given & MODELS:
        return with_rates(name) if given & SIZES else name
    if given & SIZES:
        raise FedkinError("clients bring models of their own or parts of one: leave rates out")
    return with_models(name)


def with_models(name: str) -> str:
    """The form of a method in which clients bring modules of their own; itself, if it is one."""
    if get_method(name).takes_models:
        return name
    if name not in _WITH_MODELS:
        able = sorted({*_WITH_MODELS, *(n for n, cls in _METHODS.items() if cls.takes_models)})
        raise FedkinError(
            f"method '{name}' needs one architecture for all clients: models of clients' own go "
            f"with {', '.join(able)}"
        )
    return _WITH_MODELS[name]
