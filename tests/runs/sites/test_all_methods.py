"""Every method gives the embedded engine's numbers through sites, their files and records."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.methods.registry import all_methods, get_method
from fedkin.runs.checks import usual
from tests.helpers import assert_states_close
from tests.runs.sites.no_network import through_sites
from tests.runs.sites.world import NAMES, embedded, write_config, write_data

SCALED = [(f"submodel-{kind}", {"scaler": "true"}) for kind in ("local", "ditto", "perm")]


# one of each kind; tests/test_common_checks.py has every method through serialised messages
ORDINARY = {"apfl", "cfl", "fedper", "perm", "pfedhn", "scaffold", "submodel", "submodel-masks"}
CASES = [
    pytest.param(name, options, marks=() if name in ORDINARY else pytest.mark.slow)
    for name, options in [*((name, {}) for name in all_methods()), *SCALED]
]


@pytest.mark.parametrize(("method", "options"), CASES)
def test_every_method_gives_the_embedded_engines_numbers(
    tmp_path: Path, method: str, options: dict[str, str]
):
    files = write_data(tmp_path)
    model = usual(get_method(method))
    config = write_config(tmp_path, method, rounds=2, model=model, baseline=True, **options)
    served, here = through_sites(config, files, tmp_path), embedded(config, files)
    ours, theirs = (each.contenders["method"].state for each in (served, here))
    assert_states_close(ours, theirs, 1e-5, 1e-5)
    for column, value in here.metrics[-1].items():
        found = served.metrics[-1][column]
        assert found == (value if value is None else pytest.approx(value, abs=1e-5)), column
    assert served.problem.data.names == NAMES
