"""The first methods against rounds computed by hand, and against each other."""

import pytest
import torch

from fedkin.methods import FedAvg, FedProx, Local, LocalizedFedAvg, Scaffold
from tests.helpers import federation, least_squares, personal_models, quadratic, run

# f_1 = (v - 1)^2/2 and f_2 = (2v + 2)^2/2: gradients v - 1 and 4v + 4, optimum of the mean -3/5
XS, YS = [1.0, 2.0], [1.0, -2.0]


def by_hand(gradient, y, steps, lr=0.1):
    for _ in range(steps):
        y = y - lr * gradient(y)
    return y


def test_a_fedavg_round_is_the_mean_of_local_steps():
    state = run(FedAvg(lr=0.1, local_steps=2), federation(quadratic(XS, YS, start=0.5)), 1)
    first = by_hand(lambda v: v - 1, 0.5, 2)
    second = by_hand(lambda v: 4 * v + 4, 0.5, 2)
    assert state.x.item() == pytest.approx((first + second) / 2, abs=1e-12)


def test_weighted_fedavg_weighs_by_sample_count():
    problem = least_squares(clients=2)
    fed = federation(problem)
    problem.train.sizes.copy_(torch.tensor([8, 4]))
    state = run(FedAvg(lr=0.1, local_steps=1, weighted=True), fed, 1)
    x, y = problem.data.train.x, problem.data.train.y
    g = [-(x[a:b].T @ y[a:b]) / (b - a) for a, b in ((0, 8), (8, 12))]
    torch.testing.assert_close(state.x, -0.1 * (8 * g[0] + 4 * g[1]) / 12)


def test_local_training_never_mixes_clients():
    method, fed = Local(lr=0.1, local_steps=3), federation(quadratic(XS, YS))
    state = run(method, fed, 2)
    expected = [by_hand(lambda v: v - 1, 0.0, 6), by_hand(lambda v: 4 * v + 4, 0.0, 6)]
    torch.testing.assert_close(
        personal_models(method, fed, state)[:, 0], torch.tensor(expected, dtype=torch.float64)
    )
    assert fed.accounts.total("bytes_up") == fed.accounts.total("bytes_down") == 0


def test_localized_fedavg_fine_tunes_a_copy():
    method, fed = (
        LocalizedFedAvg(lr=0.1, local_steps=1, tune_steps=2, tune_lr=0.05),
        federation(quadratic(XS, YS)),
    )
    state = run(method, fed, 1)
    x = (by_hand(lambda v: v - 1, 0.0, 1) + by_hand(lambda v: 4 * v + 4, 0.0, 1)) / 2
    expected = [by_hand(lambda v: v - 1, x, 2, 0.05), by_hand(lambda v: 4 * v + 4, x, 2, 0.05)]
    torch.testing.assert_close(
        personal_models(method, fed, state)[:, 0], torch.tensor(expected, dtype=torch.float64)
    )
    assert state.x.item() == pytest.approx(x, abs=1e-12)


def test_fedprox_pulls_towards_the_received_model():
    state = run(FedProx(lr=0.1, local_steps=2, mu=0.5), federation(quadratic(XS, YS, start=0.5)), 1)
    first = by_hand(lambda v: v - 1 + 0.5 * (v - 0.5), 0.5, 2)
    second = by_hand(lambda v: 4 * v + 4 + 0.5 * (v - 0.5), 0.5, 2)
    torch.testing.assert_close(state.x.item(), (first + second) / 2)


def test_fedprox_without_pull_is_fedavg():
    a = run(FedProx(lr=0.05, mu=0.0), federation(least_squares()), 5)
    b = run(FedAvg(lr=0.05), federation(least_squares()), 5)
    torch.testing.assert_close(a.x, b.x, rtol=0, atol=1e-12)


def test_two_scaffold_rounds_by_hand():
    lr, K = 0.1, 2
    fed = federation(quadratic(XS, YS))
    state = run(Scaffold(lr=lr, local_steps=K), fed, 2)
    x, c, ci = 0.0, 0.0, [0.0, 0.0]
    gradients = [lambda v: v - 1, lambda v: 4 * v + 4]
    for _ in range(2):
        new, dx = [], 0.0
        for gradient, own in zip(gradients, ci, strict=True):
            y = x
            for _ in range(K):
                y = y - lr * (gradient(y) - own + c)
            new.append(own - c + (x - y) / (K * lr))
            dx += (y - x) / 2
        c, x, ci = c + (sum(new) - sum(ci)) / 2, x + dx, new
    torch.testing.assert_close([state.x.item(), state.c.item()], [x, c])


def test_fedavg_with_one_step_is_centralised_sgd():
    problem = least_squares()
    state = run(FedAvg(lr=0.05, local_steps=1), federation(problem), 30)
    x, y = problem.data.train.x, problem.data.train.y
    v = torch.zeros(3, dtype=torch.float64)
    for _ in range(30):
        v = v - 0.05 * x.T @ (x @ v - y) / len(y)
    torch.testing.assert_close(state.x, v)


def test_scaffold_reaches_the_optimum_where_fedavg_does_not():
    problem = quadratic(XS, YS)
    scaffold = run(Scaffold(lr=0.05, local_steps=10), federation(problem), 300)
    fedavg = run(FedAvg(lr=0.05, local_steps=10), federation(problem), 300)
    assert abs(scaffold.x.item() + 3 / 5) < 1e-8
    assert abs(fedavg.x.item() + 3 / 5) > 0.05


def test_scaffolds_server_variate_moves_by_the_share_of_clients_that_answered():
    # c <- c + 1/N*sum over S of (c_i+ - c_i), where c_i+ = (x - y_i)/(K*lr) and c = c_i = 0 before
    lr, K, xs, ys = 0.1, 2, [1.0, 2.0, 0.5, 1.5], [1.0, -2.0, 3.0, 0.5]
    fed = federation(quadratic(xs, ys, start=0.5), fraction=0.5)
    state = run(Scaffold(lr=lr, local_steps=K), fed, 1)
    asked = fed.sample().tolist()
    assert len(asked) == 2
    ends = [by_hand(lambda v, i=i: xs[i] * (xs[i] * v - ys[i]), 0.5, K) for i in asked]
    assert state.c.item() == pytest.approx(sum((0.5 - y) / (K * lr) for y in ends) / 4, abs=1e-12)
    assert state.x.item() == pytest.approx(sum(ends) / 2, abs=1e-12)


def test_local_training_makes_as_many_passes_as_it_is_told():
    # 8 samples in batches of 3 are 3 steps a pass
    fed = federation(least_squares(clients=2, samples=8, batch_size=3))
    run(Local(lr=0.1, local_epochs=2, local_steps=1), fed, 1)
    assert fed.accounts.column("gradients").tolist() == [6, 6]
