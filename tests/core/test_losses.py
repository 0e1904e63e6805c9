"""Losses against their definitions and derivatives, and the models they accept."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

from fedkin.core.client import Client
from fedkin.core.losses import LOSSES, balanced_weights, weighted
from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.runs.evaluation import score_model
from tests.helpers import blobs, federation


def outputs_and_targets(width: int, classes: int):
    g = torch.Generator().manual_seed(0)
    outputs = torch.randn(40, width, generator=g, dtype=torch.float64)
    return outputs, torch.randint(0, classes, (40,), generator=g)


@pytest.mark.parametrize(("name", "width"), [("logistic", 1), ("cross-entropy", 3)])
def test_closed_form_slopes_are_derivatives_and_curvature_bounds_their_change(name, width):
    loss = LOSSES[name]
    outputs, targets = outputs_and_targets(width, max(2, width))
    at = outputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss.value(at, targets).sum(), at)
    torch.testing.assert_close(loss.slope(outputs, targets), slope)
    for i in range(len(outputs)):
        second = torch.autograd.functional.hessian(
            lambda o, i=i: loss.value(o[None], targets[i : i + 1]).sum(), outputs[i]
        )
        assert torch.linalg.eigvalsh(second).max() <= loss.curvature


def test_logistic_loss_is_cross_entropy_of_two_classes():
    outputs, targets = outputs_and_targets(1, 2)
    pair = torch.cat([torch.zeros_like(outputs), outputs], 1)
    two = LOSSES["cross-entropy"]
    torch.testing.assert_close(LOSSES["logistic"].value(outputs, targets), two.value(pair, targets))
    assert torch.equal(LOSSES["logistic"].predict(outputs), two.predict(pair))


def test_logistic_accuracy_counts_signs():
    data = blobs(clients=3, classes=2)
    problem = Problem(nn.Linear(5, 1), data, "logistic")
    v = torch.randn(6, generator=torch.Generator().manual_seed(1))
    scores = score_model(federation(problem), v)
    for i in range(3):
        x, y = data.test[i]
        right = ((x @ v[:5] + v[5] > 0).long() == y).double().mean()
        torch.testing.assert_close(scores.accuracy[i], right)


def test_logistic_loss_refuses_models_and_data_of_other_shapes():
    with pytest.raises(FedkinError, match="2 classes and a model with 1 output"):
        Problem(nn.Linear(5, 2), blobs(classes=2), "logistic")
    with pytest.raises(FedkinError, match="not for 3 classes"):
        Problem(nn.Linear(5, 1), blobs(classes=3), "logistic")


def largest_inputs(client: Client) -> dict[str, torch.Tensor]:
    return {"L": client.smoothness(), "g": client.full_grad(client.initial)}


@pytest.mark.parametrize("grow", [0, 1])
def test_sweeps_see_every_example_once_whether_clients_are_alike_or_not(grow):
    data = blobs(clients=4, classes=2)
    if not grow:
        pieces = [tuple(t[:20] for t in data.train[i]) for i in range(4)]
        data = type(data)(type(data.train).of(pieces), data.test, 2)
    problem = Problem(nn.Linear(5, 1), data, "logistic", l2=0.1, dtype=torch.float64)
    replies = federation(problem).map(largest_inputs)
    v = problem.initial[0]
    for i in range(4):
        x, y = data.train[i][0].double(), data.train[i][1]
        expected = ((x.square().sum(1) + 1).max() / 4 + 0.1)[None]
        torch.testing.assert_close(replies["L"][i], expected)
        slope = torch.sigmoid(x @ v[:5] + v[5]) - y
        g = torch.cat([slope @ x, slope.sum()[None]]) / len(y) + 0.1 * v
        torch.testing.assert_close(replies["g"][i], g)


WEIGHTS = (0.5, 3.0, 1.25)


@pytest.mark.parametrize("kernel", ["native", "vmap", "autograd"])
def test_class_weights_are_torchs_in_every_kernel(kernel):
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    problem = Problem(model, blobs(), class_weights=WEIGHTS, dtype=torch.float64)
    x, y = problem.train.x[:12].view(2, 6, -1), problem.train.y[:12].view(2, 6)
    v = problem.initial + torch.tensor([[0.0], [0.1]])
    value, slope = problem.kernel(kernel).value_and_grad(v, x, y, None)
    along = torch.randn(v.shape, generator=torch.Generator().manual_seed(1), dtype=v.dtype)
    turn = problem.kernel(kernel).hvp(v, along, x, y, None)

    def torchs(row, i):
        by_name = {name: part[0] for name, part in problem.layout.split(row[None]).items()}
        outputs = torch.func.functional_call(problem.spec.module, by_name, (x[i],))
        weight = torch.tensor(WEIGHTS, dtype=v.dtype)
        return nn.functional.cross_entropy(outputs, y[i], weight=weight, reduction="none").mean()

    own = torch.func.grad(torchs)
    for i in range(2):
        torch.testing.assert_close(value[i, 0], torchs(v[i], i))
        torch.testing.assert_close(slope[i], own(v[i], i))
        expected = torch.func.jvp(lambda row, i=i: own(row, i), (v[i],), (along[i],))[1]
        torch.testing.assert_close(turn[i], expected)


def test_weighted_logistic_loss_is_weighted_cross_entropy_of_two_classes():
    outputs, targets = outputs_and_targets(1, 2)
    pair = torch.cat([torch.zeros_like(outputs), outputs], 1)
    loss = weighted(LOSSES["logistic"], (0.5, 4.0))
    weight = torch.tensor([0.5, 4.0]).double()
    expected = nn.functional.cross_entropy(pair, targets, weight=weight, reduction="none")
    torch.testing.assert_close(loss.value(outputs, targets.double()), expected)
    at = outputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss.value(at, targets).sum(), at)
    torch.testing.assert_close(loss.slope(outputs, targets), slope)


def test_balanced_weights_are_scikit_learns_and_of_training_rows():
    data = blobs()
    problem = Problem(nn.Linear(5, 3), data, class_weights="balanced")
    expected = compute_class_weight("balanced", classes=np.arange(3), y=data.train.y.numpy())
    assert problem.spec.loss.weights == pytest.approx(expected.tolist())
    assert balanced_weights([3, 0, 9]) == pytest.approx((2.0, 1.0, 2 / 3))


@pytest.mark.parametrize(
    ("weights", "said"),
    [((1, 2), "2 numbers for 3 classes"), ((1, 0, 1), "above 0"), ("fair", "not 'fair'")],
)
def test_wrong_class_weights_are_refused(weights, said):
    with pytest.raises(FedkinError, match=said):
        Problem(nn.Linear(5, 3), blobs(), class_weights=weights)


@pytest.mark.parametrize("name", ["cross-entropy", "squared-error", "hinge"])
@pytest.mark.parametrize("turned", [False, True])
def test_derivatives_of_rows_are_those_of_their_examples(name, turned):
    torch.manual_seed(0)
    loss, outputs = LOSSES[name], torch.randn(2, 5, 3).double()
    outputs = outputs.transpose(1, 2).contiguous().transpose(1, 2) if turned else outputs
    targets = torch.randint(0, 3, (2, 5)) if loss.classes else torch.randn(2, 5, 3).double()
    at = outputs.clone().requires_grad_()
    total = sum(loss.value(at[i], targets[i]).sum() for i in range(2))
    (expected,) = torch.autograd.grad(total, at)
    torch.testing.assert_close(loss.derivatives(outputs, targets), expected)
