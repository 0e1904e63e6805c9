"""How sure a client's score is."""

import numpy as np
import pytest
import torch
from scipy import stats

from fedkin.core.metrics import BUILT_IN, METRICS
from fedkin.core.problem import Problem
from fedkin.methods.base import use
from fedkin.runs.evaluation import score, score_model, score_trivial
from fedkin.runs.noise import exact_binomial, noise, shares_of
from tests.helpers import blobs, federation


def test_the_interval_of_an_accuracy_is_the_exact_binomial_one():
    right, count = np.array([0.0, 3, 10, 7]), np.array([4.0, 10, 10, 0])
    low, high = exact_binomial(right, count)
    for i in range(3):
        exact = stats.binomtest(int(right[i]), int(count[i])).proportion_ci(0.95, "exact")
        assert (low[i], high[i]) == pytest.approx((exact.low, exact.high))
    assert np.isnan(low[3])


def resampled(values, times, seed):
    """Means of a client's values under resampling, with the same draws for the same seed."""
    g = np.random.default_rng(seed)
    rows = g.integers(0, len(values), (times, len(values)))
    return torch.from_numpy(values[rows].mean(1))[None]


def test_differences_beyond_the_noise_are_those_of_the_exact_sign_test():
    """Right and wrong answers of two models: McNemar's exact test at 5 % agrees nearly always."""
    g, agree, trials = np.random.default_rng(0), 0, 150
    for trial in range(trials):
        n = int(g.integers(1, 60))
        one, other = (g.random(n) < p for p in g.uniform(0.2, 1, 2))
        b, c = int((one & ~other).sum()), int((other & ~one).sum())
        certain = b + c > 0 and stats.binomtest(b, b + c).pvalue < 0.05
        draws = [resampled(part.astype(float), 400, trial) for part in (one, other)]
        half = float(noise(*draws, torch.tensor([n]), bounded=True))
        agree += (abs(one.mean() - other.mean()) > half) == certain
    assert agree >= 0.92 * trials


def test_one_row_says_nothing_and_ties_are_the_same():
    ones, zeros = torch.ones(1, 50), torch.zeros(1, 50)
    assert noise(ones, zeros, torch.tensor([1]), bounded=True).isinf().all()
    gain = torch.tensor([0.0, 0.3, -0.3, 0.3, torch.nan])
    found = shares_of(gain, torch.tensor([0.0, 0.1, 0.1, torch.inf, 0.0]))
    assert (found.better, found.same, found.worse) == (0.25, 0.5, 0.25)


def test_resamples_do_not_depend_on_how_clients_are_cut_into_blocks():
    problem = Problem(torch.nn.Linear(5, 3), blobs())
    found = []
    for engine in ("embedded", "wire"):  # all at once, and one by one
        fed = federation(problem, engine)
        asked = fed.request(use, shared={"model": problem.initial[0]})
        found.append(score(fed, asked, metrics=("auc", "accuracy"), resamples=5).resampled["auc"])
    torch.testing.assert_close(found[0], found[1])


def test_the_trivial_answer_is_the_clients_commonest_class():
    problem = Problem(torch.nn.Linear(5, 3), blobs())
    trivial = score_trivial(federation(problem), ("accuracy", "auc"))
    data = problem.data
    for i in range(data.num_clients):
        common = data.train[i][1].bincount(minlength=3).argmax()
        expected = (data.test[i][1] == common).double().mean()
        assert float(trivial["accuracy"][i]) == pytest.approx(float(expected))
        assert float(trivial["auc"][i]) == pytest.approx(0.5)


def test_engines_agree_on_every_metric():
    problem = Problem(torch.nn.Linear(5, 3), blobs())
    names = [name for name in BUILT_IN if not METRICS[name].numbers]
    model = problem.initial[0]
    first = score_model(federation(problem), model, metrics=names)
    second = score_model(federation(problem, "wire"), model, metrics=names)
    for name in names:
        torch.testing.assert_close(first[name], second[name], equal_nan=True)
        assert first.pooled(name) == pytest.approx(second.pooled(name))
