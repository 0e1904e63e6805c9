"""pFedMe against rounds by hand, and the mixture optimum."""

import torch

from fedkin.methods import PFedMe
from tests.helpers import federation, least_squares, personal_models, quadratic, run
from tests.methods.truth import GRADIENTS, XS, YS, column, mixture_optimum


def test_two_rounds_by_hand():
    lr, lam, inner_lr, beta = 0.05, 3.0, 0.1, 0.8
    method = PFedMe(lr=lr, local_steps=2, lam=lam, inner_lr=inner_lr, inner_steps=3, beta=beta)
    fed = federation(quadratic(XS, YS, start=0.5))
    state = run(method, fed, 2)
    x, thetas = 0.5, [0.5, 0.5]
    for _ in range(2):
        ws = []
        for i, g in enumerate(GRADIENTS):
            w, theta = x, thetas[i]
            for _ in range(2):
                for _ in range(3):
                    theta = theta - inner_lr * (g(theta) + lam * (theta - w))
                w = w - lr * lam * (w - theta)
            thetas[i] = theta
            ws.append(w)
        x = (1 - beta) * x + beta * sum(ws) / 2
    torch.testing.assert_close(state.x, torch.tensor([x], dtype=torch.float64))
    torch.testing.assert_close(personal_models(method, fed, state), column(*thetas))


def test_the_inner_steps_solve_one_minibatch():
    """From w = 0 they reach the closed form x_j*y_j/(x_j^2 + lam) of the sample j drawn."""
    problem = least_squares(clients=1, dimension=1, batch_size=1, reshuffle=False)
    method, fed = PFedMe(local_steps=1, lam=5.0, inner_lr=0.1, inner_steps=500), federation(problem)
    theta = personal_models(method, fed, run(method, fed, 1)).item()
    x, y = problem.data.train.x[:, 0], problem.data.train.y
    assert (x * y / (x.square() + 5.0) - theta).abs().min() < 1e-12


def test_it_reaches_the_mixture_optimum():
    problem = least_squares()
    method = PFedMe(lr=0.2, local_steps=1, lam=2.0, inner_lr=0.1, inner_steps=5)
    fed = federation(problem)
    state = run(method, fed, 600)
    optimum = mixture_optimum(problem, 2.0)
    torch.testing.assert_close(personal_models(method, fed, state), optimum, rtol=0, atol=1e-6)
    torch.testing.assert_close(method.global_model(state), optimum.mean(0), rtol=0, atol=1e-6)


def test_clients_never_asked_use_the_global_model():
    method, fed = PFedMe(), federation(least_squares(), fraction=0.25)
    state = run(method, fed, 1)
    models = personal_models(method, fed, state)
    assert sum(torch.equal(model, state.x) for model in models) == 3
