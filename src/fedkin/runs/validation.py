"""Checks of user input; an error is one sentence about the first problem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from fedkin.errors import FedkinError, unknown
from fedkin.methods import Method
from fedkin.methods.base import refusal
from fedkin.methods.registry import form_for, get_method
from fedkin.runs.settings import Settings

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
Table = TypeVar("Table", bound=BaseModel)

# built on first use: each takes milliseconds
_options: dict[type[Method], type[BaseModel]] = {}


def validated(table: type[Table], values: Any, where: str) -> Table:
    """The values as a checked table; a FedkinError about the first problem."""
    try:
        return table.model_validate(dict(values) if isinstance(values, Mapping) else values)
    except ValidationError as error:
        raise sentence(table, error, where) from None


def sentence(model: Any, error: ValidationError, where: str) -> FedkinError:
    """What is wrong first with content that should have the form of a model."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid":
        return FedkinError(f"{where} is damaged: {first['msg'][:200]}")
    if first["type"] == "extra_forbidden" and hasattr(model, "model_fields"):
        table: Any = model
        for part in path[:-1]:
            fields_ = getattr(table, "model_fields", {})
            table = fields_[part].annotation if part in fields_ else None
        known = getattr(table, "model_fields", {})
        return FedkinError(f"{where}: {unknown('key', path[-1], known)}")
    key, shown = ".".join(path) or "its content", repr(first.get("input"))[:60]
    if first["type"] == "missing":
        return FedkinError(f"{where} does not say what {key} is")
    if first["type"] == "literal_error":
        choices = re.findall(r"'([^']+)'", first["ctx"]["expected"])
        return FedkinError(f"{where}: {unknown(key, first['input'], choices)}")
    reason = re.sub(r"^(Value error, |Input )", "", first["msg"])
    reason = reason.replace("a valid integer", "a whole number").replace("a valid ", "a ")
    return FedkinError(f"{where}: {key} {reason[:1].lower()}{reason[1:]}, but it is {shown}")


def options_model(cls: type[Method]) -> type[BaseModel]:
    """A method's dataclass fields as a checked table."""
    if cls in _options:
        return _options[cls]
    hints = get_type_hints(cls, include_extras=True)
    columns: dict[str, Any] = {}
    for f in fields(cls):
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        columns[f.name] = (hints[f.name], ... if default is MISSING else default)
    own = ConfigDict(**STRICT, arbitrary_types_allowed=True)
    _options[cls] = create_model(cls.__name__, __config__=own, **columns)
    return _options[cls]


def make_method(name: str, options: Mapping[str, Any]) -> Method:
    """A method by name with these options, in the form with sub-models where they give sizes."""
    cls = get_method(form_for(name, options))
    known = {f.name for f in fields(cls)}
    for option in options:
        if option not in known:
            refuse_setting(cls, option)
            if option in cls.former:
                now = " or ".join(cls.former[option])
                raise FedkinError(f"setting {option} of {cls.name} is now called {now}")
            raise unknown("setting", option, [*known, *(f.name for f in fields(Settings))])
    checked = validated(options_model(cls), options, f"method '{cls.name}'")
    return cls(**{option: getattr(checked, option) for option in options})


def refuse_options(method: Method, options: Mapping[str, Any], settings: list[str]) -> None:
    """Say where options of a method belong when they are given beside it."""
    option, known = sorted(options)[0], {f.name for f in fields(method)}
    kind = type(method)
    if option in known:
        raise FedkinError(
            f"{option} is an option of the method: write {kind.__name__}({option}=...)"
        )
    form = form_for(kind.name, options)  # says so where there is no such form
    if form != kind.name:
        raise FedkinError(
            f"{option} goes with '{form}': write {get_method(form).__name__}({option}=...), or "
            f"the method by its name, train(problem, '{kind.name}', {option}=...)"
        )
    raise unknown("setting", option, settings)


def check_method(method: Method) -> None:
    """Raise if a setting of a method is out of range."""
    values = {f.name: getattr(method, f.name) for f in fields(method)}
    validated(options_model(type(method)), values, f"method '{method.name}'")
    method.check()


def refuse_setting(cls: type[Method], setting: str) -> None:
    """Say why a method does not have a setting that others have, where there is a reason."""
    if setting in cls.refuses and setting not in {f.name for f in fields(cls)}:
        raise FedkinError(refusal(cls.name, setting, cls.refuses[setting]))
