"""Configs: complete, repeatable, and every key a command-line option."""

from __future__ import annotations

import tomllib
import types
from dataclasses import fields
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from annotated_types import Ge, Gt, Le, Lt

from fedkin.command.template import meaning, template
from fedkin.data import DataConfig
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg
from fedkin.methods.registry import all_methods, get_method
from fedkin.runs.config import ALIASES, RunConfig, make_config, read_config
from fedkin.runs.options import merge, own_keys, parse, sections
from fedkin.runs.sections import FaultConfig, ModelConfig
from fedkin.runs.settings import Settings, make_settings
from fedkin.runs.training import Trainer
from fedkin.runs.validation import make_method
from tests.helpers import least_squares

every_method = pytest.mark.parametrize("name", list(all_methods()))


@every_method
def test_a_config_written_down_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    config = make_config({"method": name, "rounds": 7, "memory": "2GB", "faults": {"drop": 0.25}})
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml({"torch": "1.2.3"}))
    again = read_config(path)
    assert again.make_method() == config.make_method()
    assert again.model_copy(update={"options": {}}) == config.model_copy(update={"options": {}})
    assert again.settings() == config.settings()


@every_method
def test_none_is_the_default_wherever_it_is_allowed(name: str) -> None:
    """TOML cannot say None: what is None must be what a missing key means."""
    cls = get_method(name)
    hints = get_type_hints(cls)
    for field in fields(cls):
        if type(None) in get_args(hints[field.name]):
            assert field.default is None


@every_method
def test_the_template_says_what_the_defaults_say(name: str) -> None:
    values = tomllib.loads(template(name))
    config = make_config(values)
    assert config.make_method() == get_method(name)()
    plain = {"options": config.options}
    assert config == RunConfig(method=config.method, **plain)


@every_method
def test_every_key_of_a_template_is_explained(name: str) -> None:
    for table in sections(get_method(name)).values():
        columns = {key: table.model_fields[key] for key in own_keys(table)}
        assert [key for key, c in columns.items() if not (c.description or meaning(c))] == []


@every_method
def test_every_number_of_a_method_is_bounded_or_a_choice(name: str) -> None:
    """A float or int without limits lets nonsense in."""
    hints = get_type_hints(get_method(name), include_extras=True)
    unbounded = [f.name for f in fields(get_method(name)) if _unbounded(hints[f.name])]
    assert unbounded == []


def _unbounded(kind: object) -> bool:
    if get_origin(kind) is Annotated:
        inner, *facts = get_args(kind)
        return not any(isinstance(f, Gt | Ge | Lt | Le) for f in facts) and _unbounded(inner)
    if isinstance(kind, types.UnionType):
        return any(_unbounded(part) for part in get_args(kind))
    return kind in (int, float)


def test_all_keys_are_options_of_the_command_line() -> None:
    words = "--rounds 3 --lr 0.5 --data digits --data.alpha 2 --model cnn:4,8 --l2=0.1 --drop 0.2"
    found = make_config({"method": "fedavg", **parse("fedavg", words.split())})
    assert (found.rounds, found.options, found.data.name) == (3, {"lr": "0.5"}, "digits")
    assert (found.data.alpha, found.model.name, found.model.l2) == (2.0, "cnn:4,8", 0.1)
    assert found.faults.drop == 0.2
    assert found.make_method() == FedAvg(lr=0.5)
    for table in (RunConfig, DataConfig, ModelConfig, FaultConfig):
        for key in own_keys(table):
            if key != "name":
                assert parse("local", [f"--{key.replace('_', '-')}", "x"])


def test_flags_can_be_said_and_denied() -> None:
    assert parse("fedavg", ["--weighted", "--no-baseline"]) == {
        "options": {"weighted": "true"},
        "baseline": "false",
    }


def test_an_option_that_could_mean_two_things_must_be_spelled_out() -> None:
    with pytest.raises(FedkinError, match=r"could mean --options.spread or --data.spread"):
        parse("ifca", ["--spread", "0.5"])
    assert parse("ifca", ["--data.spread", "0.1"]) == {"data": {"spread": "0.1"}}


@pytest.mark.parametrize("method", list(all_methods()))
def test_alpha_is_dirichlets_whatever_the_method(method: str) -> None:
    assert parse(method, ["--alpha", "0.1"]) == {"data": {"alpha": "0.1"}}


def test_former_names_are_understood_in_files_and_explained_on_the_command_line() -> None:
    old = make_config({"method": "lsgd", "options": {"objective": "apfl2", "alpha": 0.3}})
    assert (old.options["w_share"], old.options["inner_lr"]) == (0.3, 0.3)
    assert make_config({"method": "apfl", "options": {"alpha": 0.3}}).options == {"own_share": 0.3}
    with pytest.raises(FedkinError, match="is now w_share, beside w_share"):
        make_config({"method": "lsgd", "options": {"alpha": 0.3, "w_share": 0.2}})
    with pytest.raises(FedkinError, match="is now called --w_share or --inner_lr"):
        parse("lsgd", ["--options.alpha", "0.3"])
    with pytest.raises(FedkinError, match="alpha of lsgd is now called w_share or inner_lr"):
        make_method("lsgd", {"alpha": 0.3})


def test_names_of_other_libraries_are_understood() -> None:
    for alias, key in ALIASES.items():
        value = 3 if key == "rounds" else 0.5
        assert getattr(make_config({"method": "local", alias: value}), key) == value


def test_options_go_before_a_config_file() -> None:
    base = {"rounds": 3, "data": {"name": "digits", "alpha": 1.0}}
    over = merge(base, {"data": {"alpha": 2.0}, "seed": 1})
    assert over == {"rounds": 3, "seed": 1, "data": {"name": "digits", "alpha": 2.0}}
    assert base["data"] == {"name": "digits", "alpha": 1.0}


def test_settings_are_checked_in_python_too() -> None:
    with pytest.raises(FedkinError, match=r"unknown setting 'round' \(did you mean 'rounds'\?\)"):
        make_settings({"round": 3})
    for wrong in ({"rounds": 0}, {"fraction": 0.0}, {"threads": 0}, {"seed": -1}, {"memory": "x"}):
        with pytest.raises(FedkinError):
            Settings(**wrong)
    with pytest.raises(FedkinError, match="method 'fedavg': lr should be greater than 0"):
        Trainer(least_squares(), FedAvg(lr=-1.0))


@pytest.mark.parametrize("name", ["lsgd", "acd", "asvrcd"])
def test_a_template_says_what_every_unified_objective_is(name: str) -> None:
    lines = {line.removeprefix("#").strip() for line in template(name).splitlines()}
    assert "traditional: f_m(w)" in lines
    assert "mt2: relax*f_m(W) + f_m(beta_m) + lam/2*|beta_m - W|^2" in lines
    assert "mx2: f_m(beta_m) + lam/2*|beta_m - W|^2" in lines
    assert "apfl2: relax*f_m(W) + f_m((1 - w_share)*beta_m + w_share*W)" in lines
    assert "maml: f_m(w - inner_lr*grad f_m(w))" in lines
    assert {line.split(":")[0] for line in lines} >= {"ws2", "residual", "personal"}
