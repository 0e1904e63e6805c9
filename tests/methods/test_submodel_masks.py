"""Coordinate masks: a round by hand, and what masked training converges to."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.methods import SubmodelMasks
from fedkin.methods.shared.masks import coordinate_window, first_rates, rates_now
from fedkin.methods.submodel_masks import divided, masked_sgd
from tests.helpers import federation, line, run

D = 4


def regression(copies=1, seed=0):
    """Two kinds of clients, `copies` of each: f_i(v) = mean_j (x_j.v - y_j)^2/2 + 0.05*|v|^2."""
    g = torch.Generator().manual_seed(seed)
    kinds = []
    for _ in range(2):
        x = torch.randn(6, D, generator=g, dtype=torch.float64) + 0.5
        kinds.append((x, x @ torch.randn(D, generator=g, dtype=torch.float64) + 0.3))
    examples = Examples.of(kinds * copies)
    data = ClientData(examples, examples, None)
    return Problem(line(D), data, l2=0.1, batch_size=6, reshuffle=True, dtype=torch.float64)


def masked_objective(problem, masks):
    """v -> mean over kinds of clients of sum_m P(m)*f_i(m*v), with its gradient."""
    sets = [tuple(t.numpy() for t in problem.data.train[i]) for i in (0, 1)]

    def value_and_grad(v):
        total, slope = 0.0, np.zeros(D)
        for (x, y), (m, chance) in itertools.product(sets, masks):
            u = m * v
            r = x @ u - y
            total += chance / 2 * ((r**2).mean() / 2 + 0.05 * (u**2).sum())
            slope += chance / 2 * m * (x.T @ r / len(y) + 0.1 * u)
        return total, slope

    return value_and_grad


def masks_of(kind, p):
    if kind == "random":
        every = [np.array(m, float) for m in itertools.product((0, 1), repeat=D)]
        return [(m, p ** m.sum() * (1 - p) ** (D - m.sum())) for m in every]
    share = torch.tensor([[p]])
    windows = [coordinate_window(torch.zeros(1, D), share, start, D)[0] for start in range(D)]
    return [(m.double().numpy(), 1 / D) for m in windows]


def minimiser(kind, p):
    found = minimize(
        masked_objective(regression(), masks_of(kind, p)), np.zeros(D), jac=True,
        method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-12},
    )  # fmt: skip
    return torch.from_numpy(found.x)


def trained(kind, p, rounds=600):
    fed = federation(regression(copies=20), seed=1)
    method = SubmodelMasks(rates=(p,), kind=kind, windows=D, local_steps=1)
    state, late = method.init(fed), []
    for number in range(1, rounds + 1):
        method.lr = 0.3 if number < rounds // 2 else 0.05
        fed.begin_round(number)
        method.round(fed, state)
        late.append(state.x)
    return torch.stack(late[rounds // 2 :]).mean(0)


@pytest.mark.parametrize("kind", ["random", "rolling"])
def test_training_converges_to_the_minimiser_of_the_masked_objective(kind):
    whole = minimiser(kind, 1.0)
    distances = []
    for p in (0.5, 0.75, 1.0):
        found, optimum = trained(kind, p), minimiser(kind, p)
        assert (found - optimum).norm() < 0.05 * whole.norm()
        distances.append((found - whole).norm().item())
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 1e-3


@pytest.mark.parametrize("aggregation", ["fill", "holders"])
def test_a_round_of_rolling_masks_by_hand(aggregation):
    # 6 coordinates in 3 cells; client 0 holds one cell, client 1 two, both from the same start
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 6, generator=g, dtype=torch.float64), torch.tensor([1.0, -1.0])
    examples = Examples.of([(x[i : i + 1], y[i : i + 1]) for i in (0, 1)])
    data = ClientData(examples, examples, None)
    fed = federation(Problem(line(6, 0.5), data, batch_size=1, dtype=torch.float64))
    method = SubmodelMasks(
        rates=(1 / 3, 2 / 3), kind="rolling", windows=3, lr=0.1, local_steps=2,
        aggregation=aggregation,
    )  # fmt: skip
    state = method.init(fed)
    rates = state.rates.tolist()
    fed.begin_round(1)
    method.round(fed, state)
    before = torch.full((6,), 0.5, dtype=torch.float64)
    # in which cell the first window starts is told by which coordinates the smaller one moved
    found = []
    for start in range(3):
        new, held = [], []
        for i in (0, 1):
            cells = [(start + k) % 3 for k in range(round(3 * rates[i]))]
            m = torch.tensor([float(j // 2 in cells) for j in range(6)], dtype=torch.float64)
            v = m * before
            for _ in range(2):
                v = v - 0.1 * m * (x[i] @ v - y[i]) * x[i]
            new.append(v + (1 - m) * before)
            held.append(m)
        if aggregation == "fill":
            found.append((new[0] + new[1]) / 2)
        else:
            count = held[0] + held[1]
            change = held[0] * (new[0] - before) + held[1] * (new[1] - before)
            found.append(before + torch.where(count > 0, change / count.clamp(min=1), 0))
    assert sum(bool(torch.allclose(state.x, option)) for option in found) == 1


def test_projection_keeps_the_model_in_the_ball():
    state = run(SubmodelMasks(rates=(0.5,), radius=0.1, lr=0.1), federation(regression()), 5)
    torch.testing.assert_close(state.x.norm().item(), 0.1)
    inside = run(SubmodelMasks(rates=(0.5,), radius=50.0, lr=0.1), federation(regression()), 5)
    free = run(SubmodelMasks(rates=(0.5,), lr=0.1), federation(regression()), 5)
    assert torch.equal(inside.x, free.x)


def test_random_masks_hold_the_promised_share_and_differ_between_clients_and_rounds():
    fed, held = federation(regression(copies=200)), []
    for number in (1, 2):
        fed.begin_round(number)
        replies = fed.map(
            masked_sgd, shared={"x": torch.ones(D, dtype=torch.float64)},
            each={"share": torch.full((400,), 0.25)}, kind="random", windows=4, start=0,
            send_mask=True, lr=0.0, local_steps=1,
        )  # fmt: skip
        held.append(replies["held"])
    assert (held[0].mean(0) - 0.25).abs().max() < 0.08
    assert not torch.equal(held[0], held[1])
    assert len(held[0].unique(dim=0)) > 10


def test_shares_may_be_redrawn_or_read_from_a_column():
    problem = regression()
    problem.data = replace(problem.data, columns={"device": ["1/2", 0.25]})
    assert SubmodelMasks(capacity="device").init(federation(problem)).rates.tolist() == [0.5, 0.25]
    fed, rates = federation(regression(copies=3)), (1.0, 0.5, 0.25)
    first, drawn = first_rates(fed, rates, "redrawn"), []
    for number in (1, 2):
        fed.begin_round(number)
        drawn.append(rates_now(fed, first, rates, "redrawn"))
        assert torch.equal(rates_now(fed, first, rates, "uniform"), first)
    assert not torch.equal(drawn[0], drawn[1])
    redrawn = run(SubmodelMasks(rates=rates, capacity="redrawn"), fed, 3)
    assert not torch.equal(redrawn.x, run(SubmodelMasks(rates=rates), fed, 3).x)


def test_division_by_nobody_is_zero():
    assert divided(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0])).tolist() == [0.5, 0.0]


def test_every_epoch_of_shuffled_windows_has_each_window_once():
    fed = federation(regression())
    method = SubmodelMasks(rates=(0.5,), kind="rolling", windows=4, lr=0.01, local_steps=1)
    starts, run_of = [], fed.engine.run

    def watched(request):
        starts.append(request.hyper["start"])
        return run_of(request)

    fed.engine.run = watched
    run(method, fed, 12)
    for epoch in (starts[:4], starts[4:8], starts[8:]):
        assert sorted(epoch) == sorted(set(starts))
        assert len(set(epoch)) == 4


def test_the_share_that_is_recorded_is_the_one_that_is_held():
    share = torch.tensor([0.3, 0.5])
    assert SubmodelMasks(kind="random", windows=4).had(share).tolist() == share.tolist()
    # windows of whole quarters: three tenths take two of them
    assert SubmodelMasks(kind="rolling", windows=4).had(share).tolist() == [0.5, 0.5]
