"""Ditto against a round by hand, FedAvg and local training."""

import torch

from fedkin.methods import Ditto, FedAvg, Local
from tests.helpers import federation, least_squares, personal_models, quadratic, run
from tests.methods.truth import GRADIENTS, ROUNDING, XS, YS, column

SMALL_BATCHES = {"batch_size": 3, "reshuffle": False}


def test_two_rounds_by_hand():
    lr, lam, method = 0.1, 0.5, Ditto(lr=0.1, local_steps=2, lam=0.5)
    fed = federation(quadratic(XS, YS, start=0.5))
    state = run(method, fed, 2)
    x, vs = 0.5, [0.5, 0.5]
    for _ in range(2):
        ys = [x, x]
        for _ in range(2):
            ys = [y - lr * g(y) for y, g in zip(ys, GRADIENTS, strict=True)]
            vs = [v - lr * (g(v) + lam * (v - x)) for v, g in zip(vs, GRADIENTS, strict=True)]
        x = sum(ys) / 2
    torch.testing.assert_close(state.x, torch.tensor([x], dtype=torch.float64))
    torch.testing.assert_close(personal_models(method, fed, state), column(*vs))


def test_without_pull_the_personal_models_are_those_of_local_training():
    ditto, alone = Ditto(lr=0.05, lam=0.0), Local(lr=0.05)
    a, b = (federation(least_squares(**SMALL_BATCHES), fraction=0.5) for _ in range(2))
    first, second = run(ditto, a, 6), run(alone, b, 6)
    ours, theirs = personal_models(ditto, a, first), personal_models(alone, b, second)
    torch.testing.assert_close(ours, theirs, **ROUNDING)


def test_the_global_model_is_that_of_fedavg_whatever_the_pull():
    a, b = (federation(least_squares(**SMALL_BATCHES)) for _ in range(2))
    ditto, fedavg = Ditto(lr=0.05, lam=2.0), FedAvg(lr=0.05)
    ours, theirs = ditto.global_model(run(ditto, a, 5)), fedavg.global_model(run(fedavg, b, 5))
    torch.testing.assert_close(ours, theirs, **ROUNDING)


def test_personal_models_stay_at_the_client():
    fed = federation(least_squares())
    run(Ditto(), fed, 1)
    assert fed.accounts.column("bytes_up").tolist() == [3 * 8] * 4
    assert fed.accounts.column("bytes_down").tolist() == [3 * 8] * 4
