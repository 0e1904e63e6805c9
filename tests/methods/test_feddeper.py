"""FedDeper against rounds by hand, and FedAvg."""

import pytest
import torch

from fedkin.methods import FedAvg, FedDeper
from tests.helpers import federation, further, least_squares, personal_models, quadratic, run
from tests.methods.truth import GRADIENTS, ROUNDING, XS, YS, column


def test_two_rounds_by_hand():
    lr, rho, lam = 0.1, 0.03, 0.75
    method = FedDeper(lr=lr, local_steps=2, rho=rho, lam=lam)
    fed = federation(quadratic(XS, YS, start=0.5))
    state = run(method, fed, 2)
    x, vs = 0.5, [0.5, 0.5]
    for _ in range(2):
        ys = []
        for i, g in enumerate(GRADIENTS):
            y, v = x, vs[i]
            for _ in range(2):
                # the step of y sees v before v's own step
                y = y - lr * g(y) - rho * (v + y - 2 * x)
                v = v - lr * g(v)
            ys.append(y)
            vs[i] = (1 - lam) * v + lam * y
        x = sum(ys) / 2
    torch.testing.assert_close(state.x, torch.tensor([x], dtype=torch.float64))
    torch.testing.assert_close(personal_models(method, fed, state), column(*vs))


def test_without_regulariser_the_global_model_is_that_of_fedavg():
    options = {"batch_size": 3, "reshuffle": False}
    ours = run(FedDeper(lr=0.05, rho=0.0), federation(least_squares(**options), fraction=0.5), 6)
    theirs = run(FedAvg(lr=0.05), federation(least_squares(**options), fraction=0.5), 6)
    torch.testing.assert_close(ours.x, theirs.x, **ROUNDING)


def test_half_takes_half_the_steps_and_as_many_gradients_as_fedavg():
    whole, half, fedavg = (federation(least_squares()) for _ in range(3))
    expected = run(FedDeper(lr=0.05, local_steps=5), whole, 3)
    state = run(FedDeper(lr=0.05, local_steps=10, half=True), half, 3)
    run(FedAvg(lr=0.05, local_steps=10), fedavg, 3)
    torch.testing.assert_close(state.x, expected.x, **ROUNDING)
    assert half.accounts.total("gradients") == fedavg.accounts.total("gradients")


def test_half_of_local_epochs_counts_steps():
    fed = federation(least_squares(batch_size=2))  # 8 samples: 4 steps in a pass
    run(FedDeper(lr=0.05, local_epochs=1, half=True), fed, 1)
    assert fed.accounts.column("gradients").tolist() == [4] * 4


def test_clients_that_are_not_sampled_keep_their_model():
    method, fed = FedDeper(lr=0.05), federation(least_squares(), fraction=0.5)
    state = method.init(fed)
    fed.begin_round(1)
    out = [i for i in range(4) if i not in fed.sample().tolist()]
    before = fed.engine.memory.read("v", torch.arange(4), fed.problem.initial).clone()
    method.round(fed, state)
    after = fed.engine.memory.read("v", torch.arange(4), fed.problem.initial)
    assert torch.equal(before[out], after[out])
    assert not torch.equal(before, after)


@pytest.mark.parametrize("rho", [0.005, 0.02])
def test_what_x_has_moved_away_from_personal_models_grows_as_the_docstring_says(rho):
    # as good as no gradients, one of ten clients in a round
    method = FedDeper(lr=1e-12, local_steps=5, rho=rho)
    fed = federation(least_squares(clients=10), fraction=0.1)
    state = run(method, fed, 1)
    state.x = state.x + 1

    def away():
        return (state.x - personal_models(method, fed, state)).abs().mean()

    further(method, fed, state, 100)
    before = away()
    further(method, fed, state, 200)
    seen = (away() / before) ** (1 / 20)
    reckoned = (1 - method.lam) * (1 + 5 * rho) + 9 * 5 * rho
    assert (seen > 1) == (reckoned > 1)
    torch.testing.assert_close(float(seen), reckoned, rtol=0.2, atol=0)
