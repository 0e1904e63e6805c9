"""Which client a name or a number means."""

import pytest

from fedkin.errors import FedkinError
from fedkin.methods import FedAvg
from fedkin.runs.names import client_at, client_number, client_position
from fedkin.runs.train import train
from tests.helpers import least_squares

GAP = [str(i) for i in range(1, 8) if i != 5]


def test_text_is_a_name_even_where_it_looks_like_a_place():
    assert client_position(GAP, "6") == 4
    with pytest.raises(FedkinError, match=r"no client '5' .*'4' and '6'"):
        client_position(GAP, "5")
    with pytest.raises(FedkinError, match="nearest name is 'north'"):
        client_position(["north", "east"], "nroth")
    with pytest.raises(FedkinError, match="clients are: a, b"):
        client_position(["a", "b"], "clinic")


def test_a_number_is_a_place_only_where_no_name_is_a_number():
    assert client_number(["north", "south"], 1) == 1
    assert client_number(GAP, 7) == 5
    with pytest.raises(FedkinError, match="no client '5'"):
        client_number(GAP, 5)
    with pytest.raises(FedkinError, match="no client '0'"):
        client_number(["north", "7"], 0)


def test_places_are_checked_and_twins_are_told_apart_by_them():
    assert client_at(GAP, 5) == 5
    with pytest.raises(FedkinError, match="places are 0 to 5"):
        client_at(GAP, 6)
    with pytest.raises(FedkinError, match="2 clients are named 'a'"):
        client_position(["a", "b", "a"], "a")


def test_models_are_found_by_name_and_by_place():
    run = train(least_squares(), FedAvg(), rounds=1, baseline=False)
    assert list(run.personal) == ["0", "1", "2", "3"]
    assert run.personal["2"].weight.equal(run.personal.at(2).weight)
    with pytest.raises(FedkinError, match="no client '4'"):
        run.personal[4]
