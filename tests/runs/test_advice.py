"""Advice: the statistics behind it, and what it says where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fedkin.data.clients import ClientData, Examples
from fedkin.data.resplit import resplit
from fedkin.errors import FedkinError
from fedkin.runs.advice import give_advice
from fedkin.runs.advice_answer import Advice, Effort
from fedkin.runs.advice_kin import find_kin
from fedkin.runs.advice_scores import Gain, gain_over_splits
from fedkin.runs.advice_search import Search
from fedkin.runs.advice_trials import Course, Splits, Trial, run_trials, simplest_of_the_best
from fedkin.runs.advice_verdict import choices
from fedkin.runs.measures import ACCURACY
from tests.helpers import blobs


def clients(weights: Tensor, samples: int, seed: int = 0, noise: float = 0.3) -> ClientData:
    """A site for each row of weights: x ~ N(0, I), class 1 where w.x + noise > 0."""
    g = torch.Generator().manual_seed(seed)
    parts = []
    for w in weights:
        x = torch.randn(samples, len(w), generator=g)
        y = (x @ w + noise * torch.randn(samples, generator=g) > 0).long()
        parts.append((x, y))
    train, test = ([(x[a:b], y[a:b]) for x, y in parts] for a, b in ((0, -1), (-1, None)))
    return ClientData(Examples.of(train), Examples.of(test), 2)


def test_the_interval_is_nadeau_and_bengios() -> None:
    values, ratio = [0.1, 0.3, 0.2, 0.6], 1 / 3
    found = gain_over_splits(values, ratio)
    assert found is not None
    half = stats.t.ppf(0.975, 3) * np.sqrt((1 / 4 + 1 / 3) * np.var(values, ddof=1))
    assert found.mean == pytest.approx(0.3)
    assert found.low == pytest.approx(0.3 - half)
    assert found.high == pytest.approx(0.3 + half)
    assert found.verdict == "same"
    assert gain_over_splits([0.0, 0.0, 0.0], 0.3) == Gain(0.0, 0.0, 0.0)
    assert gain_over_splits([0.2, 0.2, 0.2], 0.3).verdict == "unknown"  # type: ignore[union-attr]
    assert gain_over_splits([np.nan, 0.1, 0.2], 0.3).verdict == "unknown"  # type: ignore[union-attr]
    assert gain_over_splits([np.nan], 0.3) is None


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Splits that share rows: means of random thirds of the same 90 numbers."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(300):
        rows = rng.normal(size=90)
        means = [rng.permutation(rows)[:30].mean() for _ in range(10)]
        found = gain_over_splits(means, 1 / 2)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0 <= found.high
    assert covered / 300 > 0.9


def test_planted_groups_are_found_again_and_noise_is_not_a_group() -> None:
    rng, labels = np.random.default_rng(1), np.repeat([0, 1, 2], 5)
    same = (labels[:, None] == labels).astype(float)
    planted = [(w := same + 0.2 * rng.random((15, 15))) / w.sum(1, keepdims=True) for _ in range(4)]
    kin = find_kin(planted)
    assert kin is not None
    assert sorted(kin.groups) == [tuple(range(5 * k, 5 * k + 5)) for k in range(3)]
    assert kin.agreement == 1
    assert {j for j, _, _ in kin.helpers(0)} <= {1, 2, 3, 4}
    noise = [(w := rng.random((15, 15))) / w.sum(1, keepdims=True) for _ in range(4)]
    assert find_kin(noise).groups == ()  # type: ignore[union-attr]
    assert find_kin([np.eye(15)] * 4).groups == ()  # type: ignore[union-attr]


def test_the_simplest_of_equally_good_ways_is_taken() -> None:
    def course(method: str, losses: list[float]) -> Course:
        return Course(Trial(method, {}, "linear", 0), np.full(4, 5.0), [1], [np.array(losses)])

    near = [course("fedavg", [0.5, 0.6, 0.5, 0.7]), course("perm", [0.6, 0.5, 0.6, 0.55])]
    assert simplest_of_the_best(near).trial.method == "fedavg"
    far = [course("fedavg", [0.9, 0.8, 0.9, 0.7]), course("perm", [0.6, 0.5, 0.6, 0.55])]
    assert simplest_of_the_best(far).trial.method == "perm"


def test_splits_keep_every_row_once_and_differ() -> None:
    data = blobs(3)
    first, second = resplit(data, 0), resplit(data, 1)
    assert first.validation is not None
    for client in range(3):
        parts = [part[client][0] for part in (first.train, first.validation, first.test)]
        whole = torch.cat([part[client][0] for part in (data.train, data.test)])
        assert torch.equal(torch.cat(parts).sort(0).values, whole.sort(0).values)
    assert not torch.equal(first.test.x, second.test.x)


def test_settings_are_chosen_without_the_test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in the test rows, the same settings are chosen."""
    data = resplit(blobs(4, samples=20), 0)
    found = []
    for spoilt in (False, True):
        y = torch.zeros_like(data.test.y) if spoilt else data.test.y
        test = Examples(data.test.x, y, data.test.offsets)
        splits = Splits((ClientData(data.train, test, 3, data.validation),), ACCURACY)
        search = Search(splits, Effort(1, 3, 1), lambda done, total: None)
        own = choices(search.everything(), 0)
        found.append({name: (c.trial, c.best_round) for name, c in own.items()})
    assert found[0] == found[1]
    assert {"local", "fedavg", "fedavg-local", "ditto", "ifca", "pfedkm", "perm"} <= set(found[0])


def test_settings_given_up_early_are_those_that_lag_behind() -> None:
    """The best after a third of the rounds goes on, and ends where it would have ended alone."""
    splits = Splits((resplit(blobs(4, samples=20), 0),), ACCURACY)
    trials = [
        Trial("fedavg", {"lr": lr, "local_steps": 2}, "linear", 0) for lr in (1e-6, 0.1, 1e-5)
    ]
    (kept,) = run_trials(splits, trials, 6, 1)
    (alone,) = run_trials(splits, trials[1:2], 6, 1)
    assert kept.trial.options["lr"] == 0.1
    assert kept.rounds == alone.rounds == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(kept.losses, alone.losses, rtol=1e-5)
    np.testing.assert_allclose(kept.test, alone.test, rtol=1e-5)  # type: ignore[arg-type]


def test_too_little_to_advise_on_is_refused() -> None:
    one = blobs(1)
    with pytest.raises(FedkinError, match="one site"):
        give_advice(one)
    x, y = torch.zeros(2, 1, 3), torch.zeros(2, 1, dtype=torch.long)
    tiny = Examples.of([(x[0], y[0]), (x[1], y[1])])
    with pytest.raises(FedkinError, match="0 of 2 sites have 4 rows or more"):
        give_advice(ClientData(tiny, tiny, 2))


# where the truth is known -------------------------------------------------------------------


def advice_on(weights: Tensor, samples: int) -> Advice:
    return give_advice(clients(weights, samples), Effort(5, 20, 5))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sites_alike_are_told_to_share_one_model() -> None:
    w = torch.randn(1, 10, generator=torch.Generator().manual_seed(1)).repeat(12, 1)
    found = advice_on(w, 24)
    assert found.decision == "one"
    assert found.method == "fedavg"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sites_in_groups_are_told_to_collaborate_within_them() -> None:
    g = torch.Generator().manual_seed(2)
    w = torch.randn(3, 10, generator=g).repeat_interleave(6, 0)
    found = advice_on(w, 40)
    assert found.decision == "groups"
    assert found.kin is not None
    assert sorted(found.kin.groups) == [tuple(range(6 * k, 6 * k + 6)) for k in range(3)]
    for i, site in enumerate(found.sites):
        assert {int(name) // 6 for name, _, _ in site.learns_from} <= {i // 6}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sites_that_have_nothing_in_common_are_told_to_train_alone() -> None:
    w = torch.randn(12, 10, generator=torch.Generator().manual_seed(3))
    found = advice_on(w, 120)
    assert found.decision == "alone"
    assert found.method == "local"
    assert found.count("gains") <= 1
