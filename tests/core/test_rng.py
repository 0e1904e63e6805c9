"""Counter-based random numbers: even, independent of each other, and the same in any order."""

import numpy as np
import pytest

from fedkin.core import rng


def test_a_number_depends_on_its_key_and_position_alone() -> None:
    keys = rng.key(1, 2, np.arange(5))
    together = rng.bits(keys, rng.positions(0, 4, 3))
    for i in range(5):
        alone = rng.bits(keys[i : i + 1], rng.positions(6, 3))
        assert (together[i, 2] == alone[0]).all()


def test_each_part_of_a_key_counts_and_so_does_their_order() -> None:
    found = [rng.key(*parts)[0] for parts in ((0, 1), (1, 0), (0, 0, 1), (0, 1, "a"), (0, 1, "b"))]
    assert len(set(found)) == 5


def test_numbers_below_a_limit_are_even() -> None:
    words = rng.bits(rng.key(7, np.arange(3)), rng.positions(0, 30_000))
    drawn = rng.below(np.array([1, 6, 1000]), words)
    assert (drawn[0] == 0).all()
    counts = np.bincount(drawn[1], minlength=6)
    assert abs(counts - 5_000).max() < 300
    assert drawn[2].min() == 0
    assert drawn[2].max() == 999


@pytest.mark.parametrize("digits", [24, 53])
def test_uniform_numbers_stay_below_one_and_are_even(digits: int) -> None:
    words = rng.bits(rng.key(3), rng.positions(0, 40_000))[0]
    u = rng.uniform(words, digits)
    assert u.min() >= 0
    largest = rng.uniform(np.array([2**64 - 1], np.uint64), digits)
    assert largest.astype(np.float32 if digits == 24 else np.float64)[0] < 1
    assert abs(u.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.02
    assert abs(np.histogram(u, 20, (0, 1))[0] - 2_000).max() < 200


def test_neighbouring_keys_are_not_alike() -> None:
    u = rng.uniform(rng.bits(rng.key(0, np.arange(200)), rng.positions(0, 50)))
    assert abs(np.corrcoef(u) - np.eye(200)).max() < 0.7
    assert abs(u.mean(1) - 0.5).max() < 0.2
