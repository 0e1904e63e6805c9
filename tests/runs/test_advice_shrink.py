"""Sites that borrow strength: the model's own integral, and how often intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedkin.runs.advice_scores import Gain
from fedkin.runs.advice_shrink import Spread, lend_strength


def gains_of(means: np.ndarray, errors: np.ndarray) -> list[Gain]:
    return [Gain(m, m - 2 * e, m + 2 * e, e) for m, e in zip(means, errors, strict=True)]


def draw(
    rng: np.random.Generator, sites: int, tau: float, splits: int
) -> tuple[np.ndarray, list[Gain], list[int]]:
    """True gains N(1, tau^2), what is seen of them, and sites' test rows.

    A site's error is itself estimated from so many splits.
    """
    truth, rows = rng.normal(1, tau, sites), rng.integers(5, 50, sites)
    error = np.sqrt(20 / rows)
    told = error * np.sqrt(rng.chisquare(splits - 1, sites) / (splits - 1))
    return truth, gains_of(truth + error * rng.normal(size=sites), told), rows.tolist()


@pytest.mark.parametrize("sites", [12, 80])
@pytest.mark.parametrize("tau", [0.0, 0.3, 0.6, 1.0, 3.0])
def test_intervals_hold_the_truth_as_often_as_they_say(sites: int, tau: float) -> None:
    """Whatever tau is: 0, far below the noise (about .9), like it, or above."""
    rng, inside = np.random.default_rng(7), []
    for _ in range(480 // sites):
        truth, gains, rows = draw(rng, sites, tau, splits=5)
        found, _ = lend_strength(gains, rows, degrees=4)
        inside += [g.low <= t <= g.high for g, t in zip(found, truth, strict=True) if g]  # type: ignore[operator]
    assert np.mean(inside) > 0.91
    assert np.mean(inside) < 0.975 or tau < 0.9


def test_sites_are_not_taken_for_equal_where_the_best_guess_is_that_they_are() -> None:
    """Where DerSimonian and Laird's tau^2 is 0: a plug-in's intervals are all the mean's."""
    rng, inside, plugged, seen = np.random.default_rng(1), [], [], 0
    while seen < 15:
        truth, gains, rows = draw(rng, 80, 0.4, splits=100)
        g, w = np.array([gain.mean for gain in gains]), np.array(rows) / 20
        mu, half = (w * g).sum() / w.sum(), 1.96 / np.sqrt(w.sum())
        if (w * (g - mu) ** 2).sum() > len(g) - 1:
            continue
        seen += 1
        found, spread = lend_strength(gains, rows, degrees=99)
        assert spread is not None
        assert spread.low <= 0.4 <= spread.high
        assert not spread.seen
        inside += [g.low <= t <= g.high for g, t in zip(found, truth, strict=True) if g]  # type: ignore[operator]
        plugged += list(abs(truth - mu) <= half)
    assert np.mean(plugged) < 0.6
    assert np.mean(inside) > 0.85


def test_the_posterior_is_that_of_a_plain_sum_over_mu_and_tau() -> None:
    rng = np.random.default_rng(3)
    g, rows = rng.normal(0.5, 1, 10), [4, 9, 30, 5, 6, 12, 7, 8, 20, 15]
    v = 8 / np.array(rows)
    found, spread = lend_strength(gains_of(g, np.sqrt(v)), rows)
    total, first, second, below, small = 0.0, 0.0, 0.0, 0.0, 0.0
    gain = found[0]
    assert gain is not None
    assert gain.high is not None
    assert spread is not None
    for tau in np.linspace(0.005, 12, 1200):
        prior = tau * np.sqrt((1 / (v + tau**2) ** 2).sum())
        mu = np.linspace(-8, 9, 341)
        fit = stats.norm.pdf(g[:, None], mu, np.sqrt(v + tau**2)[:, None]).prod(0)
        weight = prior * fit
        variance = 1 / (1 / v[0] + 1 / tau**2)
        middle = variance * (g[0] / v[0] + mu / tau**2)
        total += weight.sum()
        first += (weight * middle).sum()
        second += (weight * (middle**2 + variance)).sum()
        below += (weight * stats.norm.cdf(gain.high, middle, np.sqrt(variance))).sum()
        small += weight.sum() * (tau <= spread.middle)
    assert gain.mean == pytest.approx(first / total, rel=2e-3)
    assert gain.error == pytest.approx(np.sqrt(second / total - (first / total) ** 2), rel=2e-3)
    assert below / total == pytest.approx(0.975, abs=1e-3)
    assert small / total == pytest.approx(0.5, abs=0.04)  # the grid has steps


def test_what_is_borrowed_makes_gains_more_accurate() -> None:
    rng = np.random.default_rng(0)
    truth, gains, rows = draw(rng, 400, 1.0, splits=100)
    found, spread = lend_strength(gains, rows, degrees=99)
    means = np.array([gain.mean for gain in found if gain])
    seen = np.array([gain.mean for gain in gains])
    assert ((means - truth) ** 2).mean() < 0.7 * ((seen - truth) ** 2).mean()
    assert isinstance(spread, Spread)
    assert spread.seen
    assert spread.low < 1 < spread.high
    unsure, _ = lend_strength(gains, rows, Gain(1.0, -3.0, 5.0), degrees=99)
    assert not any(gain.verdict == "gains" for gain in unsure if gain and gain.mean < 0.5)


def test_few_sites_and_sites_without_noise_borrow_nothing() -> None:
    gains = gains_of(np.arange(12.0), np.ones(12))
    assert lend_strength(gains[:9], [5] * 9) == (gains[:9], None)
    assert lend_strength([None, *gains], [5] * 13)[0][0] is None
    still = [Gain(0.0, 0.0, 0.0)] * 12
    assert lend_strength(still, [5] * 12) == (still, None)
