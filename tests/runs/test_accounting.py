"""Epsilon against dp-accounting itself, formulas from papers, and published numbers."""

from __future__ import annotations

from math import comb, exp, log

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld, rdp
from scipy.optimize import brentq
from scipy.stats import norm

from fedkin.errors import FedkinError
from fedkin.runs.accounting import Sampling, epsilon, find_noise

POISSON = Sampling("poisson", 0.01, 10, 1000)


def test_epsilon_is_that_of_dp_accounting() -> None:
    event = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.1))
    theirs = rdp.RdpAccountant().compose(event, 500).get_epsilon(1e-5)
    assert epsilon({(1, 0): 500}, 1.1, POISSON, 1e-5) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.slow
def test_epsilon_is_no_smaller_than_the_tight_one() -> None:
    event = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.1))
    tight = pld.PLDAccountant().compose(event, 500).get_epsilon(1e-5)
    assert tight <= epsilon({(1, 0): 500}, 1.1, POISSON, 1e-5) < 1.6 * tight


def test_epsilon_of_abadi_et_al() -> None:
    """q = .01, sigma = 4, 100 epochs of 1/q steps, delta = 1e-5: 1.26 by the moments accountant
    (Abadi et al., 2016, section 5.1). Ours converts moments better, and must lie below."""
    q, sigma, steps, delta = 0.01, 4.0, 10_000, 1e-5

    def moments(order: int) -> float:  # Mironov et al., 2019, for whole orders
        terms = [
            log(comb(order, k)) + k * log(q) + (order - k) * log(1 - q) + (k * k - k) / 2 / sigma**2
            for k in range(order + 1)
        ]
        return float(np.logaddexp.reduce(terms)) / (order - 1)

    published = min(steps * moments(a) + log(1 / delta) / (a - 1) for a in range(2, 64))
    assert published == pytest.approx(1.26, abs=0.01)
    assert 0.9 < epsilon({(1, 0): steps}, sigma, POISSON, delta) < published


def test_everybody_in_every_round_is_one_gaussian_mechanism() -> None:
    """T rounds are one with z/sqrt(T); its delta at epsilon: Balle and Wang, 2018, theorem 8."""
    z, rounds, delta = 5.0, 30, 1e-6
    s = z / rounds**0.5

    def excess(e: float) -> float:
        return float(norm.cdf(0.5 / s - e * s) - exp(e) * norm.cdf(-0.5 / s - e * s)) - delta

    everybody = Sampling("all", 1.0, 10, 10)
    expected = brentq(excess, 0, 50)
    assert epsilon({(1, 0): rounds}, z, everybody, delta) == pytest.approx(expected, rel=1e-6)


def test_fixed_samples_are_accounted_for_without_replacement() -> None:
    """Adjacent: one client replaced, which changes a sum by twice the limit."""
    fixed = Sampling("fixed", 0.1, 10, 100)
    event = dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(3.0))
    theirs = rdp.RdpAccountant([2, 3, 5, 8, 13, 21], dp.NeighboringRelation.REPLACE_ONE)
    ours = epsilon({(1, 0): 20}, 6.0, fixed, 1e-5)
    assert ours <= theirs.compose(event, 20).get_epsilon(1e-5) < 1.1 * ours
    assert ours > epsilon({(1, 0): 20}, 6.0, Sampling("poisson", 0.1, 10, 100), 1e-5)


def test_more_sums_in_a_round_and_single_rows_cost_more() -> None:
    """Two sums of the same clients are one with 1/sqrt(2) of the noise; single rows are not
    hidden by sampling."""
    two = epsilon({(2, 0): 100}, 2.0, POISSON, 1e-5)
    assert two == pytest.approx(epsilon({(1, 0): 100}, 2.0 / 2**0.5, POISSON, 1e-5))
    alone = epsilon({(0, 1): 100}, 20.0, POISSON, 1e-5)
    everybody = epsilon({(1, 0): 100}, 20.0, Sampling("all", 1.0, 10, 10), 1e-5)
    assert alone == pytest.approx(everybody, rel=0.15)
    assert alone >= everybody


def test_nothing_released_costs_nothing_and_no_noise_everything() -> None:
    assert epsilon({(0, 0): 9}, 1.0, POISSON, 1e-5) == 0
    assert epsilon({(1, 0): 1}, 0.0, POISSON, 1e-5) == float("inf")


@pytest.mark.parametrize("kind", ["all", "poisson", "fixed"])
def test_the_noise_for_an_epsilon_is_found(kind: str) -> None:
    sampling = Sampling(kind, 0.2, 20, 100)
    z = find_noise(3.0, 1e-5, 30, (1, 0), sampling)
    assert 0.97 * 3.0 < epsilon({(1, 0): 30}, z, sampling, 1e-5) <= 3.0


def test_an_epsilon_that_no_noise_gives_is_refused() -> None:
    with pytest.raises(FedkinError, match="cannot be kept for 1000 rounds"):
        find_noise(1e-7, 1e-300, 1000, (1, 0), Sampling("all", 1.0, 10, 10))
