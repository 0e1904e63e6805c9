"""APFL against rounds by hand, local training and FedAvg."""

import torch

from fedkin.methods import APFL, FedAvg, Local
from tests.helpers import federation, least_squares, personal_models, quadratic, run
from tests.methods.truth import GRADIENTS, ROUNDING, XS, YS, column

SMALL_BATCHES = {"batch_size": 3, "reshuffle": False}


def by_hand(rounds, steps, lr, alpha, alpha_lr, start):
    x, vs, alphas = start, [start, start], [alpha, alpha]
    for _ in range(rounds):
        ws = []
        for i, g in enumerate(GRADIENTS):
            w, v, a = x, vs[i], alphas[i]
            for _ in range(steps):
                slope = g(a * v + (1 - a) * w)
                new_a = min(1.0, max(0.0, a - alpha_lr * (v - w) * slope))
                w, v, a = w - lr * g(w), v - lr * a * slope, new_a
            vs[i], alphas[i] = v, a
            ws.append(w)
        x = sum(ws) / 2
    return x, [a * v + (1 - a) * x for v, a in zip(vs, alphas, strict=True)], alphas


def test_two_rounds_with_a_fixed_mix_by_hand():
    method, fed = (
        APFL(lr=0.1, local_steps=2, own_share=0.3),
        federation(quadratic(XS, YS, start=0.5)),
    )
    state = run(method, fed, 2)
    x, mixes, _ = by_hand(2, 2, 0.1, 0.3, 0.0, 0.5)
    torch.testing.assert_close(state.x, torch.tensor([x], dtype=torch.float64))
    torch.testing.assert_close(personal_models(method, fed, state), column(*mixes))


def test_three_rounds_with_an_adaptive_mix_by_hand():
    method = APFL(lr=0.1, local_steps=3, own_share=0.3, alpha_lr=0.2)
    fed = federation(quadratic(XS, YS, start=0.5))
    state = run(method, fed, 3)
    x, mixes, alphas = by_hand(3, 3, 0.1, 0.3, 0.2, 0.5)
    torch.testing.assert_close(state.x, torch.tensor([x], dtype=torch.float64))
    torch.testing.assert_close(personal_models(method, fed, state), column(*mixes))
    kept = fed.engine.memory.read("a", torch.arange(2), torch.zeros(1, 1))
    torch.testing.assert_close(kept, column(*alphas))
    assert alphas[0] != alphas[1] != 0.3


def test_the_adaptive_mix_stays_between_own_and_shared():
    fed = federation(least_squares())
    run(APFL(lr=0.1, alpha_lr=50.0), fed, 5)
    kept = fed.engine.memory.read("a", torch.arange(4), torch.zeros(1, 1))
    assert ((kept >= 0) & (kept <= 1)).all()


def test_all_own_is_local_training():
    method, alone = APFL(lr=0.05, own_share=1.0), Local(lr=0.05)
    a, b = (federation(least_squares(**SMALL_BATCHES), fraction=0.5) for _ in range(2))
    ours = personal_models(method, a, run(method, a, 6))
    theirs = personal_models(alone, b, run(alone, b, 6))
    torch.testing.assert_close(ours, theirs, **ROUNDING)


def test_nothing_own_is_fedavg():
    method, fedavg = APFL(lr=0.05, own_share=0.0), FedAvg(lr=0.05)
    a, b = (federation(least_squares(**SMALL_BATCHES), fraction=0.5) for _ in range(2))
    ours = personal_models(method, a, run(method, a, 6))
    theirs = personal_models(fedavg, b, run(fedavg, b, 6))
    torch.testing.assert_close(ours, theirs.expand(4, 3), **ROUNDING)
