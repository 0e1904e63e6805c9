"""Options of the unified optimisers: the theorem's steps and output, the switch, the rescaling."""

import pytest
import torch

from fedkin.core.problem import Problem
from fedkin.methods import ASCD, ASVRCD, LSGD
from fedkin.models import build
from tests.helpers import blobs, federation, further, run
from tests.methods.unified_truth import Truth, logistic


def gap(method, truth, state, fed):
    """F above its optimum at what the method would use."""
    return method.value(fed, state) - truth.optimum()[1]


def test_decreasing_steps_are_those_of_the_theorem():
    # with full batches one client's steps can be taken by hand: lr*a/(a + t), t over all rounds
    problem = logistic(clients=1, batch_size=100, reshuffle=True)
    method = LSGD(objective="traditional", lr=0.5, local_steps=3, decrease=4.0)
    state = run(method, federation(problem), 2)
    truth, w = Truth(problem, "traditional"), torch.zeros(4, dtype=torch.float64)
    for t in range(6):
        at = w.clone().requires_grad_()
        (slope,) = torch.autograd.grad(truth.loss(0, at), at)
        w = w - 0.5 * 4 / (4 + t) * slope
    torch.testing.assert_close(state.w, w)


def test_the_theorems_numbers_follow_from_smoothness_and_convexity():
    problem = logistic(l2=0.1)
    state = LSGD(objective="traditional", decrease="theorem").init(federation(problem))
    smooth = max(float(x.square().sum(1).max()) for x, _ in problem.data.train) / 4 + 0.1
    assert state.a == pytest.approx(16 * smooth / 0.1)
    assert state.lr == pytest.approx(4 / (0.1 * state.a))


def test_the_output_is_the_weighted_mean_over_rounds():
    method = LSGD(objective="mx2", lr=0.1, local_steps=5, decrease=10.0, averaged=True)
    fed = federation(logistic())
    state, seen, betas = run(method, fed, 1), [], []
    for number in range(1, 6):
        seen.append(state.w.clone())
        betas.append(fed.engine.memory.read("beta", torch.arange(4), fed.problem.initial).clone())
        if number < 5:
            further(method, fed, state, 1)
    weights = torch.tensor([(10 + 5 * r) ** 2 for r in range(1, 6)], dtype=torch.float64)
    mean = (weights[:, None] * torch.stack(seen)).sum(0) / weights.sum()
    torch.testing.assert_close(method.used(state), mean)
    own = (weights[:, None, None] * torch.stack(betas)).sum(0) / weights.sum()
    torch.testing.assert_close(fed.look(method.personal(fed, state))["model"], own)


def test_the_theorems_steps_and_output_come_nearer_than_steps_all_alike():
    problem = logistic(l2=0.3)
    truth, gaps = Truth(problem, "traditional"), []
    for options in ({"lr": 0.1}, {"decrease": "theorem", "averaged": True}):
        method, fed = LSGD(objective="traditional", **options), federation(problem)
        gaps.append(gap(method, truth, run(method, fed, 400), fed))
    assert 0 <= gaps[1] < gaps[0] / 3


def test_the_switch_is_ascd_until_it_gains_no_more_and_then_reaches_the_optimum():
    problem, options = logistic(seed=1), {"objective": "mx2", "lam": 0.3}
    truth, feds = Truth(problem, "mx2"), [federation(problem) for _ in range(2)]
    both = ASVRCD(switch=10, **options), ASCD(**options)
    ours, theirs = (run(method, fed, 10) for method, fed in zip(both, feds, strict=True))
    torch.testing.assert_close(ours.w, theirs.w)
    for method, fed, state in zip(both, feds, (ours, theirs), strict=True):
        further(method, fed, state, 800)
    assert ours.switched
    near, noisy = (gap(m, truth, s, f) for m, s, f in zip(both, (ours, theirs), feds, strict=True))
    assert near < noisy / 10
    assert near < 1e-4


def test_lsgd_does_not_rescale_unless_told_since_that_shortens_its_steps_on_w():
    assert ASCD(objective="ws2").rescales()
    assert LSGD(objective="ws2", rescale=True).rescales()
    moved = []
    for options in ({}, {"rescale": True}):
        problem = Problem(build("mlp:16", (5,), 3, 3), blobs(clients=12), dtype=torch.float64)
        method, fed = LSGD(objective="ws2", lr=0.01, local_steps=1, **options), federation(problem)
        state = run(method, fed, 1)
        models = fed.look(method.personal(fed, state))["model"]
        body = problem.size - 3 * 17
        moved.append((models - problem.initial)[:, :body])
    # the same gradient, by w/sqrt(M) and back again: M times less
    torch.testing.assert_close(moved[0], 12 * moved[1])


def test_steps_for_everybody_are_told_where_some_are_asked():
    problem = logistic()
    assert ASCD().remarks(federation(problem)) == ()
    (said,) = ASCD().remarks(federation(problem, fraction=0.5))
    assert "if everybody takes part" in said.sentence
    assert said.unstable
    assert LSGD().remarks(federation(problem, fraction=0.5)) == ()
