"""L2SGD+ against its coins tossed by hand, its own gradient, and the mixture optimum."""

import numpy as np
import pytest
import torch

from fedkin.methods import L2SGD
from fedkin.methods.l2sgd import average_and_train
from tests.helpers import federation, least_squares, personal_models, quadratic, run
from tests.methods.truth import GRADIENTS, XS, YS, column, mixture_optimum


class Coins:
    """A generator that says what it is told."""

    def __init__(self, averagings, local_steps, renew):
        self.numbers, self.renew = [averagings, local_steps], renew

    def geometric(self, p):
        return self.numbers.pop(0)

    def random(self):
        return 0.0 if self.renew else 1.0


def test_coins_tossed_by_hand(monkeypatch):
    lr, lam, p = 0.05, 0.4, 0.3
    plan = [(0, 2, True), (1, 3, False), (2, 1, True), (3, 2, False)]
    method, fed = L2SGD(lr=lr, lam=lam, p=p, refresh=0.5), federation(quadratic(XS, YS, start=0.5))
    state = method.init(fed)
    for number, (averagings, steps, renew) in enumerate(plan, 1):
        fed.begin_round(number)
        coins = Coins(averagings, steps, renew) if number > 1 else Coins(steps, None, renew)
        monkeypatch.setattr(fed, "random", lambda purpose, coins=coins: coins)
        method.round(fed, state)

    # one toss after the other, with xbar always the true mean
    xs, psi, js, snapshots = [0.5, 0.5], [0.0, 0.0], [0.0, 0.0], [None, None]
    for averagings, steps, renew in plan:
        for _ in range(averagings):
            xbar = sum(xs) / 2
            for i in range(2):
                pull = lam * (xs[i] - xbar)
                xs[i] -= lr * (pull / p - (1 / p - 1) * psi[i] + js[i])
                psi[i] = pull
        for i, g in enumerate(GRADIENTS):
            if renew:
                snapshots[i], js[i] = xs[i], g(xs[i])
            for _ in range(steps):
                old = 0.0 if snapshots[i] is None else g(snapshots[i])
                xs[i] -= lr * ((g(xs[i]) - old) / (1 - p) + js[i] + psi[i])
    torch.testing.assert_close(personal_models(method, fed, state), column(*xs))
    torch.testing.assert_close(method.global_model(state), column(sum(xs) / 2)[0])


@pytest.mark.parametrize("rounds", [0, 7])
def test_the_step_is_unbiased_whatever_the_control_variates(rounds):
    """The mean over the coin and the sample drawn is -lr times the gradient of N*F."""
    lr, lam, p = 0.02, 0.5, 0.3
    problem = least_squares(clients=3, samples=4, batch_size=1)
    method, fed = L2SGD(lr=lr, lam=lam, p=p, refresh=0.5), federation(problem)
    state = run(method, fed, rounds)
    x = personal_models(method, fed, state)
    shared = {"xbar": x.mean(0), "jbar": state.j}

    def after(averagings, local_steps):
        request = fed.request(
            average_and_train, shared=shared, averagings=averagings, local_steps=local_steps,
            lr=lr, lam=lam, p=p, renewals=0,
        )  # fmt: skip
        return fed.look(request)["dx"] + x.mean(0)

    draws, fed.round = [], 1000
    for _ in range(1500):  # each request draws its sample anew
        draws.append(after(0, 1))
    mean = p * after(1, 0) + (1 - p) * torch.stack(draws).mean(0)
    error = (1 - p) * torch.stack(draws).std(0) / np.sqrt(len(draws))
    slopes = []
    for i in range(3):
        inputs, targets = problem.data.train[i]
        slopes.append(inputs.T @ (inputs @ x[i] - targets) / 4 + lam * (x[i] - x.mean(0)))
    deviation = (mean - (x - lr * torch.stack(slopes))).abs()
    assert (deviation <= 4.5 * error + 1e-12).all()


def test_it_reaches_the_mixture_optimum_with_minibatches():
    problem = least_squares(batch_size=2, reshuffle=False)
    method, fed = L2SGD(lr=0.05, lam=0.5, p=0.3, refresh=0.5), federation(problem)
    state = run(method, fed, 1500)
    optimum = mixture_optimum(problem, 0.5)
    torch.testing.assert_close(personal_models(method, fed, state), optimum, rtol=0, atol=1e-6)
    torch.testing.assert_close(method.global_model(state), optimum.mean(0), rtol=0, atol=1e-6)


def test_communication_is_counted_only_where_the_coin_turns():
    """In n tosses the coin turns from local to average about n*p*(1-p) times."""
    p, rounds = 0.2, 400
    fed = federation(quadratic(XS, YS))
    run(L2SGD(lr=0.01, p=p, refresh=0.0), fed, rounds)
    assert fed.accounts.column("bytes_up").tolist() == [2 * 8 * rounds] * 2
    # two gradients a local step; 1/p local steps in a stretch, with deviation sqrt(1-p)/p each
    local_steps = fed.accounts.column("gradients")[0].item() / 2
    assert abs(local_steps - rounds / p) < 4 * np.sqrt(rounds * (1 - p)) / p
