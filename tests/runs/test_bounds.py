"""Every number that a user can give has an end, and numbers no run can want are refused."""

from __future__ import annotations

from typing import Any

import pytest

from fedkin.core.faults import Faults
from fedkin.errors import FedkinError
from fedkin.methods.registry import all_methods, get_method
from fedkin.runs.options import sections
from fedkin.runs.settings import Settings
from tests.run_command import Fedkin


def whole_numbers(schema: dict[str, Any]) -> bool:
    """Whether a field takes whole numbers without an end."""
    if schema.get("type") == "integer":
        return "maximum" not in schema and "exclusiveMaximum" not in schema
    return any(whole_numbers(own) for own in schema.get("anyOf", []))


def test_every_whole_number_of_a_config_has_a_largest_value() -> None:
    endless = set()
    for name in all_methods():
        for section, table in sections(get_method(name)).items():
            for key, schema in table.model_json_schema()["properties"].items():
                if whole_numbers(schema):
                    endless.add(f"{section}.{key} of {name}")
    assert not endless


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (f"run ifca --clusters {2**63}", "clusters should be less than or equal to 1000000"),
        ("run local --threads 4096", "threads should be less than or equal to"),
        (f"run local --rounds {10**12}", "rounds should be less than or equal to 10000000"),
        (f"run local --delay {10**9}", "delay should be less than or equal to 1000000"),
        (f"run local --data linear --num-clients {10**9} --samples {10**6}", "lower num_clients"),
        (f"run local --data synthetic --num-clients {10**9}", "lower num_clients, samples or dim"),
        (f"run local --data crowd --num-clients {10**9} --samples {10**6}", "this machine has"),
        ("run local --strategy native:1:4096x4096", "more than 256 threads"),
        (f"compare local --seeds {10**12}", "at least 1 and at most 10000"),
        ("compare local --seeds ²", "give the number of seeds"),
        ("compare local --jobs 99999", "at least 1 and at most 256"),
        (f"partition digits --seed {2**64}", "--seed"),
        ("report runs --target nan", "give a number that can be reached"),
        ("join --name a --device gpu9", "device 'gpu9' cannot be used"),
    ],
)
def test_numbers_no_run_can_want_get_a_sentence(fedkin: Fedkin, words: str, sentence: str) -> None:
    said = fedkin(*words.split())
    assert said.code == 2
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_the_same_from_python() -> None:
    for given in ({"rounds": 10**12}, {"threads": 4096}, {"faults": Faults(delay=1e9)}):
        with pytest.raises(FedkinError, match="must be at most"):
            Settings(**given)
