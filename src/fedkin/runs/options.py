"""Command-line options are config keys: `--lr 0.1`, `--data mnist`, `--data.alpha 0.3`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from fedkin.data import DataConfig
from fedkin.errors import FedkinError, unknown
from fedkin.methods import Method
from fedkin.methods.registry import form_for, get_method
from fedkin.runs.config import ALIASES, RunConfig
from fedkin.runs.sections import FaultConfig, ModelConfig
from fedkin.runs.validation import options_model, refuse_setting

# keys of a config that are no options: tables, and the checksums that a run writes itself
TABLES = ("options", "data", "model", "faults", "files")


def sections(method: type[Method]) -> dict[str, type[BaseModel]]:
    """Every table of a config with its keys; the run's own keys are under ''."""
    return {
        "": RunConfig,
        "options": options_model(method),
        "data": DataConfig,
        "model": ModelConfig,
        "faults": FaultConfig,
    }


def own_keys(table: type[BaseModel]) -> list[str]:
    return [name for name in table.model_fields if name not in (*TABLES, "method")]


def places(method: type[Method]) -> dict[str, list[tuple[str, str]]]:
    """Where each option belongs: (table, key), under its short and its dotted name."""
    found: dict[str, list[tuple[str, str]]] = {
        "data": [("data", "name")],
        "model": [("model", "name")],
    }
    for section, table in sections(method).items():
        for key in own_keys(table):
            if section:
                found[f"{section}.{key}"] = [(section, key)]
            if key != "name":
                found.setdefault(key, []).append((section, key))
    for alias, key in ALIASES.items():
        found[alias] = found[key]
    return found


def parse(method: str, words: Sequence[str]) -> dict[str, Any]:
    """`--key value` pairs as nested config values. The method's keys go before the data's."""
    method = form_for(method, keys_given(words))
    known = places(get_method(method))
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise FedkinError(f"'{word}' is not understood: options look like --key value")
        name, given, value = word[2:].partition("=")
        name = name.replace("-", "_")
        negated = name.startswith("no_") and name[3:] in known
        name = name[3:] if negated else name
        old = get_method(method).former.get(name.removeprefix("options."))
        if name not in known and old:
            now = " or ".join(f"--{new}" for new in old)
            raise FedkinError(f"option --{name} of {method} is now called {now}")
        if name not in known:
            refuse_setting(get_method(method), name.removeprefix("options."))
            option = unknown("option", name, known)
            raise FedkinError(f"{option}; `fedkin config {method}` shows every key")
        if negated:
            value = "false"
        elif not given:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        section, key = _place(name, known[name])
        table = values.setdefault(section, {}) if section else values
        if key in table:
            raise FedkinError(f"option --{name} is given twice")
        table[key] = plain(value)
    return values


def by_keys(method: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names that options have, as nested config values: `lr=0.1, data="mnist"`."""
    method = form_for(method, keys)
    known, values = places(get_method(method)), dict[str, Any]()
    for name, value in keys.items():
        if name not in known:
            refuse_setting(get_method(method), name)
            raise unknown("key", name, known)
        section, key = _place(name, known[name])
        (values.setdefault(section, {}) if section else values)[key] = value
    return values


def keys_given(words: Sequence[str]) -> list[str]:
    """The keys that options name, the method's own without their table."""
    options = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    return [name.removeprefix("options.").replace("-", "_") for name in options]


def _place(name: str, found: list[tuple[str, str]]) -> tuple[str, str]:
    if len(found) > 1:
        choices = " or ".join(f"--{section}.{key}" for section, key in found)
        raise FedkinError(f"option --{name} could mean {choices}: write one of them")
    return found[0]


def plain(text: str) -> Any:
    """A value as typed: lists and dicts as json, `none` for None."""
    if text.lower() == "none":
        return None
    if text[:1] in "[{":
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Nested values of `over` in place of those of `base`."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge(result[key], value) if both else value
    return result
