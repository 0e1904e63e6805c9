"""Thousands of mutated configs at the front door: a run, or one of our own sentences."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedkin.errors import FedkinError, as_user_error
from fedkin.methods.registry import all_methods, get_method
from fedkin.runs.checks import usual
from fedkin.runs.config import make_config
from fedkin.runs.options import own_keys, parse, sections
from fedkin.runs.settings import Settings
from fedkin.runs.training import Trainer

TINY: dict[str, Any] = {
    "rounds": 1,
    "data": {"name": "perm-synthetic", "num_clients": 4, "samples": 8, "dim": 4},
    "model": {"name": "mlp:3"},
    "options": {},
    "faults": {},
}
JUNK = [
    None, True, False, 0, -1, 1, 2, 10**15, 2**63, -(2**70), 0.5, -0.5, 1e-300, 1e300,
    float("inf"), float("nan"), "", " ", "none", "nan", "0", "1e3", "mlp:", "mlp:-1", "mlp:2,,3",
    "mlp:99999999999999999999", "linear:3", "cnn:1,2,3,4,5,6", "logistic", "cnn", "linear",
    "digits", "csv", "npz", "hf", "mnist", "cross-entropy", "hinge", "squared-error",
    "float64", "cuda", "meta", "wire", "embedded",
    "native:2:1x1", "vmap", "threads", "native:9:9", "10KB", "-1GB", "/", ".", "\0", "\ud800",
    "a.csv", "a.zip", "nowhere.npz", [], [1], ["a"], {}, {"name": "digits"}, {"a": {"b": 1}},
]  # fmt: skip
PATIENCE = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

any_value = st.one_of(
    st.sampled_from(JUNK), st.integers(-3, 40), st.floats(0, 3), st.text(max_size=6)
)


def likely(kind: object) -> st.SearchStrategy[Any]:
    """Values that a key of this type may well take."""
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    inside = [likely(part) for part in get_args(kind) if part is not type(None)]
    if inside and get_origin(kind) is not tuple:
        return inside[0]
    choices: dict[object, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(1, 12),
        float: st.sampled_from([0.0, 1e-3, 0.1, 0.5, 0.9, 1.0, 2.0, 1e9]),
    }
    return choices.get(kind, any_value)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A tiny config with one to four things changed, taken away or added."""
    name = draw(st.sampled_from(list(all_methods())))
    config: dict[str, Any] = {"method": name, **copy.deepcopy(TINY)}
    tables = sections(get_method(name))
    for _ in range(draw(st.integers(1, 4))):
        section = draw(st.sampled_from(list(tables)))
        table = config.get(section, {}) if section else config
        if not isinstance(table, dict):
            continue
        columns = tables[section].model_fields
        key = draw(st.sampled_from(own_keys(tables[section])))
        match draw(st.integers(0, 9)):
            case 0:
                table.pop(draw(st.sampled_from([key, *table])), None)
            case 1:
                table[draw(st.sampled_from([*TINY, "method", "nmae", key]))] = draw(any_value)
            case 2 | 3 if key != "delay":  # which would really be waited for
                table[key] = draw(any_value)
            case _ if key != "delay":
                table[key] = draw(likely(columns[key].annotation))
    return config


def lets_in(config: dict[str, Any], train: bool) -> bool:
    """Whether a config is taken; any other answer than our own error is a failure."""
    try:
        found = make_config(config)
        problem = found.make_problem(found.make_data())
        if train:
            one = Settings(rounds=1, strategy="stacked", faults=found.settings().faults)
            Trainer(problem, found.make_method(), one).step()
    except Exception as error:
        if as_user_error(error) is None:
            raise
        return False
    return True


def test_the_tiny_config_is_let_in() -> None:
    for name, cls in all_methods().items():
        model = {"model": {"name": usual(cls)}} if cls.needs else {}
        assert lets_in({"method": name, **TINY, **model}, train=True), name


@pytest.mark.parametrize("section", ["", "options", "data", "model", "faults"])
def test_every_key_meets_every_kind_of_junk(section: str) -> None:
    for key in own_keys(sections(get_method("fedavg-local"))[section]):
        for value in JUNK:
            config = {"method": "fedavg-local", **copy.deepcopy(TINY)}
            (config[section] if section else config)[key] = value
            lets_in(config, train=False)


@given(mutated())
@settings(PATIENCE, max_examples=400)
def test_mutated_configs_are_taken_or_refused_with_a_sentence(config: dict[str, Any]) -> None:
    lets_in(config, train=False)


@given(mutated())
@settings(PATIENCE, max_examples=300)
def test_what_is_taken_trains_or_is_refused_with_a_sentence(config: dict[str, Any]) -> None:
    lets_in(config, train=True)


@given(st.lists(st.text(max_size=10) | st.sampled_from(["--lr", "--no-baseline", "--data=", "3"])))
@settings(PATIENCE, max_examples=300)
def test_words_of_the_command_line_are_read_or_refused(words: list[str]) -> None:
    with suppress(FedkinError):
        parse("fedavg", words)
