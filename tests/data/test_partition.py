"""Partitions: every sample goes to one client at most, and each scheme keeps its promise."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.data import partition
from fedkin.errors import FedkinError

LABELS = np.random.default_rng(7).integers(0, 10, 2000)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


SCHEMES = {
    "iid": lambda r: partition.iid(LABELS, 17, r),
    "dirichlet": lambda r: partition.dirichlet(LABELS, 17, 0.3, r),
    "classes": lambda r: partition.by_classes(LABELS, 17, 3, r),
    "classes, power-law": lambda r: partition.by_classes(LABELS, 17, 3, r, 0.6),
    "classes on a ring": lambda r: partition.by_classes(LABELS, 17, 3, r, ring=True),
    "shards": lambda r: partition.shards(LABELS, 17, 2, r),
    "powerlaw": lambda r: partition.powerlaw(LABELS, 17, 1.0, r),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_sample_goes_to_exactly_one_client(scheme: str) -> None:
    rows = np.concatenate(SCHEMES[scheme](rng()))
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(LABELS)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_same_seed_same_rows_and_another_seed_others(scheme: str) -> None:
    first, again, other = (SCHEMES[scheme](rng(s)) for s in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = [len(rows) for rows in partition.iid(LABELS, 17, rng())]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60, deadline=None)
@given(
    alpha=st.floats(5e-324, 1e6),
    num_clients=st.integers(1, 200),
    classes=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_dirichlet_ends_and_gives_everybody_the_minimum(
    alpha: float, num_clients: int, classes: int, seed: int
) -> None:
    labels = np.arange(600) % classes
    parts = partition.dirichlet(labels, num_clients, alpha, rng(seed), min_per_client=3)
    assert min(len(rows) for rows in parts) >= 3
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(600))


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 100])
def test_dirichlet_deals_500_clients_100_classes_within_a_second(alpha: float) -> None:
    labels = np.arange(50_000) % 100
    start = time.process_time()
    parts = partition.dirichlet(labels, 500, alpha, rng(), min_per_client=10)
    assert time.process_time() - start < 1
    assert len(parts) == 500


def test_dirichlet_skew_falls_with_alpha() -> None:
    def classes_held(alpha: float) -> float:
        parts = partition.dirichlet(LABELS, 20, alpha, rng(), 1)
        return float(np.mean([len(np.unique(LABELS[rows])) for rows in parts]))

    assert classes_held(0.05) < 4 < 9 < classes_held(100)


def test_dirichlet_shares_have_the_distributions_mean_and_variance() -> None:
    # One class among 4 clients: a client's share has variance (1/4)(3/4) / (4 alpha + 1).
    draws = np.array([partition._dirichlet(0.5, 4, rng(s)) for s in range(4000)])
    shares = draws / draws.sum(1, keepdims=True)
    assert shares.mean(0) == pytest.approx([0.25] * 4, abs=0.02)
    assert shares.var(0) == pytest.approx([0.0625] * 4, abs=0.006)


@pytest.mark.parametrize("k", [1, 2, 5, 10])
def test_each_client_holds_k_classes_and_classes_are_held_equally_often(k: int) -> None:
    parts = partition.by_classes(LABELS, 20, k, rng())
    held = [np.unique(LABELS[rows]) for rows in parts]
    assert all(len(classes) == k for classes in held)
    assert np.ptp(np.bincount(np.concatenate(held), minlength=10)) <= 1


def test_size_power_makes_clients_with_k_classes_unequal() -> None:
    sizes = [len(rows) for rows in partition.by_classes(np.arange(70_000) % 10, 40, 3, rng(), 0.6)]
    assert 5 < max(sizes) / min(sizes) < 20


def test_more_classes_per_client_than_classes_is_refused() -> None:
    with pytest.raises(FedkinError, match=r"classes_per_client is 11 but the data have 10 classes"):
        partition.by_classes(LABELS, 5, 11, rng())


def test_two_shards_hold_few_classes() -> None:
    labels = np.arange(6000) % 10
    parts = partition.shards(labels, 100, 2, rng())
    assert all(len(rows) == 60 for rows in parts)
    assert all(len(np.unique(labels[rows])) <= 2 for rows in parts)


def test_powerlaw_sizes_follow_the_ranks() -> None:
    parts = partition.powerlaw(np.zeros(10_000, int), 10, 1.0, rng(), 1)
    sizes = np.sort([len(rows) for rows in parts])[::-1]
    expected = 1 + 9990 / np.arange(1, 11) / np.sum(1 / np.arange(1, 11))
    np.testing.assert_allclose(sizes, expected, atol=1)


def test_column_keeps_each_clients_rows_in_order_and_drops_unowned_ones() -> None:
    parts = partition.by_column(np.array([1, 0, -1, 1]), 3)
    assert [rows.tolist() for rows in parts] == [[1], [0, 3], []]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: partition.iid(LABELS[:3], 4, rng()), "4 clients cannot share 3 samples"),
        (lambda: partition.iid(LABELS, 0, rng()), "num_clients is 0"),
        (
            lambda: partition.shards(LABELS[:9], 5, 2, rng()),
            "need 10 shards but there are 9 samples",
        ),
        (
            lambda: partition.dirichlet(LABELS, 300, 1.0, rng(), 10),
            "300 clients with at least 10 samples each need 3000 samples but there are 2000",
        ),
    ],
)
def test_too_many_clients_are_refused(call: object, sentence: str) -> None:
    with pytest.raises(FedkinError, match=sentence):
        call()  # type: ignore[operator]


def test_apportion_sums_exactly_and_gives_nothing_to_weight_zero() -> None:
    counts = partition.apportion(np.array([0.0, 1.0, 1.0, 1.0]), 10)
    assert counts.sum() == 10
    assert counts[0] == 0
    assert np.ptp(counts[1:]) == 1


def test_on_a_ring_client_i_holds_class_i_and_those_after_it() -> None:
    parts = partition.by_classes(LABELS, 13, 3, rng(), ring=True)
    held = [set(LABELS[rows]) for rows in parts]
    assert held == [{i % 10, (i + 1) % 10, (i + 2) % 10} for i in range(13)]


def test_sizes_run_from_the_smallest_to_the_largest_asked_for_and_use_all_samples() -> None:
    labels = np.repeat(np.arange(10), 6000)
    parts = partition.by_classes(
        labels, 40, 3, np.random.default_rng(0), ring=True, size_range=(470, 4116)
    )
    sizes = np.array([len(rows) for rows in parts])
    assert sizes.sum() == len(np.unique(np.concatenate(parts))) == 60_000
    assert abs(sizes.min() - 470) <= 2
    assert abs(sizes.max() - 4116) <= 2
    assert [sorted(set(labels[rows])) for rows in parts[:9:4]] == [[0, 1, 2], [4, 5, 6], [0, 8, 9]]


@pytest.mark.parametrize("sizes", [(10, 20), (2000, 3000), (300, 200), (1, 60_000)])
def test_sizes_that_cannot_be_had_are_refused(sizes: tuple[int, int]) -> None:
    labels = np.repeat(np.arange(10), 6000)
    with pytest.raises(FedkinError, match="size_range"):
        partition.by_classes(labels, 40, 3, np.random.default_rng(0), size_range=sizes)


@pytest.mark.parametrize("least", [None, 3, 40])
@pytest.mark.parametrize("scheme", [
    lambda labels, least, g: partition.powerlaw(labels, 10, 3.0, g, least),
    lambda labels, least, g: partition.dirichlet(labels, 10, 1e-3, g, least),
])  # fmt: skip
def test_nobody_has_fewer_than_the_minimum_which_is_ten_unless_told(scheme, least) -> None:
    parts = scheme(np.arange(600) % 5, least, rng(3))
    assert min(len(rows) for rows in parts) >= (10 if least is None else least)
    assert sum(len(rows) for rows in parts) == 600


def test_shards_are_dealt_at_random() -> None:
    # 200 shards, 20 of each class: a client's second is of the class of its first for 19 in 199
    labels, same = np.arange(6000) % 10, []
    firsts = set()
    for seed in range(20):
        parts = partition.shards(labels, 100, 2, rng(seed))
        same += [len(np.unique(labels[rows])) == 1 for rows in parts]
        firsts.add(tuple(np.unique(labels[parts[0]])))
    assert abs(np.mean(same) - 19 / 199) < 0.03
    assert len(firsts) > 5
