"""Splits keep each class's share; nobody is left without training data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.data.split import assign_folds, assign_test, split, take


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=80), st.floats(0, 0.99))
def test_class_shares_are_kept_to_within_one_sample(labels: list[int], fraction: float) -> None:
    y = np.array(labels)
    kept, held = split(np.arange(len(y)), y, fraction, rng())
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.arange(len(y)))
    assert len(kept) >= 1
    if fraction > 0 and len(y) > 1:
        assert len(held) >= 1
    for c in np.unique(y):
        expected = (y == c).sum() * len(held) / len(y)
        assert abs((y[held] == c).sum() - expected) < 1


def test_a_client_with_one_sample_trains_on_it() -> None:
    kept, held = split(np.array([5]), np.zeros(6, int), 0.5, rng())
    assert (kept.tolist(), held.tolist()) == ([5], [])


def test_fraction_zero_holds_nothing_out() -> None:
    assert len(split(np.arange(9), np.zeros(9, int), 0.0, rng())[1]) == 0


def test_take_of_more_than_there_is_takes_all() -> None:
    assert take(np.array([0, 1, 1]), 10, rng()).tolist() == [0, 1, 2]


def test_official_test_samples_are_dealt_once_in_each_clients_class_shares() -> None:
    labels, test_labels = np.arange(6000) % 10, np.arange(1000) % 10
    train = [np.flatnonzero(labels < 2), np.flatnonzero(labels == 2), np.flatnonzero(labels > 2)]
    shares = assign_test(train, labels, test_labels, rng())
    assert sorted(np.concatenate(shares)) == list(range(1000))
    for rows, test_rows in zip(train, shares, strict=True):
        ours = np.bincount(labels[rows], minlength=10) / len(rows)
        theirs = np.bincount(test_labels[test_rows], minlength=10) / len(test_rows)
        assert theirs == pytest.approx(ours, abs=0.01)


def test_a_client_too_small_for_a_test_share_gets_one_sample_of_its_commonest_class() -> None:
    labels = np.array([0] * 100 + [1] * 100)
    train = [np.arange(0, 199), np.array([199])]
    shares = assign_test(train, labels, np.array([0, 1]), rng())
    assert [rows.tolist() for rows in shares] == [[0, 1], [1]]


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(2, 7))
def test_folds_hold_every_row_out_once_in_even_parts(labels: list[int], count: int) -> None:
    y = np.array(labels)
    fold = assign_folds([np.arange(len(y))], y, count, rng())
    sizes = np.bincount(fold, minlength=count)
    assert fold.min() >= 0
    assert sizes.max() - sizes.min() <= 1
    for c in np.unique(y):
        own = np.bincount(fold[y == c], minlength=count)
        assert own.max() - own.min() <= 1


def test_people_are_in_one_fold_and_somebody_is_left_to_learn_from() -> None:
    people = np.array([0, 0, 1, 1, 2, 3, 3, 3, 4, 5, 5, 2, 6, 6])
    parts = [np.arange(8), np.arange(8, 12), np.arange(12, 14)]  # the last has one person only
    fold = assign_folds(parts, np.zeros(14, int), 3, rng(), people)
    for person in range(7):
        assert len(set(fold[people == person])) == 1
    assert set(fold[12:]) == {-1}
    for rows in parts:
        for held in range(3):
            assert (fold[rows] != held).any()
    assert (fold[:12] >= 0).all()
