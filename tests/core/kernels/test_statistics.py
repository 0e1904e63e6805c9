"""Examples from which norms take their statistics."""

from __future__ import annotations

import pytest

from fedkin.core.kernels.statistics import spread


@pytest.mark.parametrize(
    ("count", "most", "places"),
    [(1, 100, [0]), (4, 100, [0, 1, 2, 3]), (4, 4, [0, 1, 2, 3]), (9, 5, [0, 2, 4, 6, 8])],
)
def test_examples_are_all_there_are_or_spread_from_the_first_to_the_last(
    count: int, most: int, places: list[int]
) -> None:
    assert spread(count, most).tolist() == places
