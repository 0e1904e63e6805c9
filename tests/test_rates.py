"""`--rates` turns a method into its form with models of different sizes."""

import pytest

from fedkin.config import make_config
from fedkin.errors import FedkinError
from fedkin.options import parse


@pytest.mark.parametrize(
    ("method", "sized"),
    [
        ("fedavg", "submodel"),
        ("fedavg-local", "submodel-local"),
        ("ditto", "submodel-ditto"),
        ("perm", "submodel-perm"),
        ("submodel-masks", "submodel-masks"),
    ],
)
def test_rates_go_with_these_methods(method, sized):
    config = make_config({"method": method, **parse(method, ["--rates", "1,1/2,0.25"])})
    assert config.method == sized
    assert config.make_method().rates == (1.0, 0.5, 0.25)


def test_other_methods_say_which_do():
    with pytest.raises(FedkinError, match=r"'scaffold' has no form.*fedavg.*ditto"):
        parse("scaffold", ["--rates", "1"])


@pytest.mark.parametrize("wrong", ["0", "2", "1,half", "", []])
def test_wrong_rates_are_refused_at_the_door(wrong):
    with pytest.raises(FedkinError, match="rates"):
        make_config({"method": "submodel", "options": {"rates": wrong}})
