"""A few of the odd tables; `python -m tests.runs.odd_tables 2000` tries many."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runs.odd_tables import try_table


@settings(max_examples=8, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(seed=st.integers(0, 10**6))
def test_an_odd_table_gets_an_answer_or_a_sentence(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place: Path = tmp_path_factory.mktemp("odd")
    assert try_table(seed, place).startswith(("advised", "refused"))
