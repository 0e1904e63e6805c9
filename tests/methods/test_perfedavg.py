"""Per-FedAvg against rounds by hand, and autograd through the adaptation."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods import PerFedAvg
from tests.helpers import blobs, federation, least_squares, personal_models, quadratic, run
from tests.methods.truth import GRADIENTS, XS, YS, column

CURVATURES = (1, 4)


def test_a_first_order_round_by_hand():
    method = PerFedAvg(lr=0.1, inner_lr=0.05, local_steps=2, tune_steps=2)
    fed = federation(quadratic(XS, YS, start=0.5))
    state = run(method, fed, 1)
    ws = []
    for g in GRADIENTS:
        w = 0.5
        for _ in range(2):
            w = w - 0.1 * g(w - 0.05 * g(w))
        ws.append(w)
    x = sum(ws) / 2
    torch.testing.assert_close(state.x, torch.tensor([x], dtype=torch.float64))
    once = [x - 0.05 * g(x) for g in GRADIENTS]
    twice = [u - 0.05 * g(u) for u, g in zip(once, GRADIENTS, strict=True)]
    torch.testing.assert_close(personal_models(method, fed, state), column(*twice))


def test_an_exact_round_by_hand():
    method = PerFedAvg(lr=0.1, inner_lr=0.05, local_steps=2, variant="hf")
    state = run(method, federation(quadratic(XS, YS, start=0.5)), 1)
    ws = []
    for g, curvature in zip(GRADIENTS, CURVATURES, strict=True):
        w = 0.5
        for _ in range(2):
            w = w - 0.1 * (1 - 0.05 * curvature) * g(w - 0.05 * g(w))
        ws.append(w)
    torch.testing.assert_close(state.x, torch.tensor([sum(ws) / 2], dtype=torch.float64))


@pytest.mark.parametrize("strategy", ["stacked", "autograd"])
def test_an_exact_step_follows_the_gradient_of_the_loss_after_adaptation(strategy):
    """mean_i of grad f_i(w - a*grad f_i(w)), for a network, by autograd through the inner step."""
    lr, a, data = 0.1, 0.3, blobs(clients=3)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    problem = Problem(net, data, batch_size=64, reshuffle=True, dtype=torch.float64, l2=0.01)
    fed = federation(problem, strategy=strategy)
    state = run(PerFedAvg(lr=lr, inner_lr=a, local_steps=1, variant="hf"), fed, 1)

    def f(w, i):
        x, y = data.train[i]
        named = {k: v[0] for k, v in problem.layout.split(w[None]).items()}
        outputs = functional_call(net, named, (x.double(),))
        return nn.functional.cross_entropy(outputs, y) + 0.01 / 2 * w.square().sum()

    w = problem.initial[0].clone().requires_grad_()
    total = 0
    for i in range(3):
        (slope,) = torch.autograd.grad(f(w, i), w, create_graph=True)
        total = total + f(w - a * slope, i) / 3
    (expected,) = torch.autograd.grad(total, w)
    torch.testing.assert_close((w - state.x) / lr, expected)


def test_without_adaptation_both_variants_agree():
    fo, hf = (
        run(PerFedAvg(lr=0.05, inner_lr=0.0, variant=v), federation(least_squares()), 4)
        for v in ("fo", "hf")
    )
    torch.testing.assert_close(fo.x, hf.x, rtol=0, atol=0)


def test_an_unknown_variant_is_refused():
    with pytest.raises(FedkinError, match="unknown variant of perfedavg 'exact'"):
        PerFedAvg(variant="exact")
