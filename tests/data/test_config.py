"""The [data] table: what is left out is filled in, what is wrong is said in one sentence."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from fedkin.data import DATASETS, DataConfig
from fedkin.data.load import SOURCES
from fedkin.errors import FedkinError


def test_every_data_set_has_a_source_and_every_key_an_explanation() -> None:
    assert DATASETS.keys() == SOURCES.keys() | {"crowd"}  # which makes clients itself
    assert all(field.description for field in DataConfig.model_fields.values())


def test_resolved_fills_in_the_data_sets_defaults_and_keeps_what_was_said() -> None:
    config = DataConfig(name="rotated-digits", num_clients=8).resolved()
    assert (config.num_clients, config.rotation_groups, config.partition) == (8, 4, "iid")
    assert config.resolved() == config
    assert DataConfig(**config.model_dump()) == config


def test_a_file_name_stands_for_its_kind() -> None:
    config = DataConfig(name="some/patients.CSV")
    assert (config.name, config.path) == ("csv", "some/patients.CSV")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "mnits"}, r"unknown data set 'mnits' \(did you mean 'mnist'\?\)"),
        ({"partition": "dirichlett"}, r"unknown partition .* \(did you mean 'dirichlet'\?\)"),
        ({"num_client": 3}, r"unknown data key 'num_client' \(did you mean 'num_clients'\?\)"),
        ({"num_clients": 0}, "'num_clients' should be greater than or equal to 1, but it is 0"),
        ({"num_clients": -5}, "'num_clients' should be greater than or equal to 1, but it is -5"),
        ({"num_clients": "many"}, "'num_clients' should be a whole number"),
        ({"alpha": 0}, "'alpha' should be greater than 0"),
        ({"alpha": float("nan")}, "'alpha' should be"),
        ({"test_fraction": 1}, "'test_fraction' should be less than 1"),
        ({"task": "classify"}, "unknown task 'classify'"),
        ({"name": 3}, "'name' should be a valid string"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(FedkinError, match=sentence) as error:
        DataConfig(**values)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_a_bad_data_table_inside_a_run_is_refused_the_same_way() -> None:
    class Run(BaseModel):
        data: DataConfig

    with pytest.raises(FedkinError, match="unknown data set"):
        Run.model_validate({"data": {"name": "nothing"}})
