"""What makes up for the channels that a smaller model lacks."""

import pytest
import torch

from fedkin.core.federation import parts
from fedkin.core.problem import Problem
from fedkin.core.variants import Variant
from fedkin.methods import Submodel
from fedkin.methods.base import State
from fedkin.models import build
from fedkin.runs.train import train
from tests.helpers import blobs, federation, run
from tests.methods.submodels import (
    RATES,
    X,
    Y,
    one_unit_step,
    six_parameter_federation,
    small_problem,
)


def test_the_scaler_multiplies_hidden_layers_by_the_inverse_rate():
    torch.manual_seed(0)
    problem = small_problem()
    small = problem.variant(Variant(0.5))
    scaled = problem.variant(Variant(0.5, scaler=True))
    x = torch.randn(1, 7, 5)
    layers = [layer for layer in small.spec.module if isinstance(layer, torch.nn.Linear)]
    out = 2 * torch.relu(layers[0](x[0]))
    out = layers[2](2 * torch.relu(layers[1](out)))
    torch.testing.assert_close(scaled.kernel().outputs(small.initial, x)[0], out)
    y = torch.randint(0, 3, (1, 7))
    step = 1e-3 * torch.randn_like(small.initial)
    kernels = [scaled.kernel("native"), scaled.kernel("autograd")]
    grads = [k.grad(small.initial, x, y, None) for k in kernels]
    torch.testing.assert_close(grads[0], grads[1])
    up, down = (kernels[0].value_and_grad(small.initial + s * step, x, y, None)[0] for s in (1, -1))
    torch.testing.assert_close(
        ((up - down) / 2).item(), (grads[0] * step).sum().item(), rtol=1e-2, atol=1e-7
    )


def with_scalers(module, rate):
    """As HeteroFL and FedRolex write it: x/rate after each layer but the last, before norms."""
    layers = [m for m in module.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)]
    for layer in layers[:-1]:
        layer.register_forward_hook(lambda _, inputs, output: output / rate)
    return module


@pytest.mark.parametrize("rate", [0.5, 1 / 16])
@pytest.mark.parametrize("model", ["mlp:32,16", "cnn:16,16,32", "resnet18:16"])
def test_the_scaler_stands_after_each_layer_and_before_its_norm(model, rate):
    shape = (3, 12, 12)
    data = blobs(clients=2, dimension=432, shape=shape)
    problem = Problem(build(model, shape, 3), data, dtype=torch.float64)
    scaled, v = problem.variant(Variant(rate, scaler=True)), problem.variant(Variant(rate)).initial
    x, y = (t[None, :9] for t in problem.data.train[0])
    reference = with_scalers(problem.variant(Variant(rate)).module(v[0]), rate)
    loss = torch.nn.functional.cross_entropy(reference(x[0].double()), y[0])
    loss.backward()
    slopes = torch.cat([p.grad.flatten() for p in reference.parameters()])
    value, grad = scaled.kernel("autograd").value_and_grad(v, x.double(), y, None)
    torch.testing.assert_close(value.item(), loss.item())
    torch.testing.assert_close(grad[0], slopes, rtol=1e-6, atol=1e-9)


def test_the_scaler_makes_up_for_the_channels_that_are_really_missing():
    # 1/16 of 4 channels is 1 of 4: what is left counts four times, not sixteen times
    problem = small_problem("mlp:4")
    scale = problem.variant(Variant(1 / 16, scaler=True)).scale
    assert scale.unique().tolist() == [1, 4]


@pytest.mark.parametrize("model", ["mlp:8,16", "cnn:8,8,16"])
def test_a_part_of_a_model_of_equal_channels_answers_like_the_whole(model):
    shape = (3, 12, 12)
    data = blobs(clients=2, dimension=432, shape=shape)
    problem = Problem(build(model, shape, 3), data, dtype=torch.float64)
    widths, whole = problem.widths, torch.empty_like(problem.initial)
    for slot in problem.layout.slots:
        values = slot.view(problem.initial)[0]
        for place, axis in enumerate(widths.axes.get(slot.name, ())):
            if axis.group is not None:  # every channel as the first
                copies = [1] * values.dim()
                copies[place] = values.shape[place] // axis.repeat
                values = values.narrow(place, 0, axis.repeat).repeat(copies)
        slot.view(whole)[0] = values + 0.01
    x = data.train.x[None, :9].double()
    expected = problem.kernel().outputs(whole, x)
    (asked,) = parts(Submodel(rates=(0.25,), tune_steps=0).personal(
        federation(problem), State(x=whole[0], rates=torch.full((2,), 0.25).double())
    ))  # fmt: skip
    answers = problem.variant(Variant(0.25)).kernel().outputs(asked.shared["x"], x)
    torch.testing.assert_close(answers, expected)


def test_weights_that_make_up_for_cut_channels_by_hand_on_six_parameters():
    # one unit of two: its weight in the last layer counts twice while the client trains
    fed = six_parameter_federation()
    method = Submodel(lr=0.01, local_steps=1, rates=(0.5,), kind="static")
    before = method.init(fed).x
    after = run(method, fed, 1).x
    new = [one_unit_step(before[:2], 2 * before[4], X[i].double(), Y[i].double(), 0.01)
           for i in (0, 1)]  # fmt: skip
    torch.testing.assert_close(after[:2], (new[0][0] + new[1][0]) / 2)
    torch.testing.assert_close(after[4], (new[0][1] + new[1][1]) / 2 / 2)
    assert torch.equal(after[[2, 3, 5]], before[[2, 3, 5]])


def test_where_a_norm_follows_weights_are_not_enlarged():
    problem = Problem(build("resnet18:8", (3, 8, 8), 3), blobs(2, dimension=192, shape=(3, 8, 8)))
    factors = problem.missing_inputs(0.25)
    last = problem.variant(Variant(0.25)).layout.slots[-2]
    assert factors[last.start : last.start + last.size].unique().tolist() == [4]
    assert factors[: last.start].unique().tolist() == [1]


def test_smaller_models_start_with_weights_as_large_as_their_inputs_ask_for():
    # a linear layer of n inputs starts within 1/sqrt(n): 8 of 200 inputs as for 8
    problem = Problem(build("mlp:200,200", (5,), 3), blobs())
    small = problem.variant(Variant(0.04))
    second = small.layout.split(small.initial)["3.weight"]
    assert second.shape == (1, 8, 8)
    assert 0.7 / 8**0.5 < second.abs().max() <= 1 / 8**0.5


class Normed(torch.nn.Module):
    """A layer norm after the first hidden layer only."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(5, 8), torch.nn.LayerNorm(8)
        self.second, self.last = torch.nn.Linear(8, 6), torch.nn.Linear(6, 3)

    def forward(self, x):
        hidden = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.second(hidden)))


def test_a_scaler_that_a_norm_undoes_is_said_before_the_run():
    fed = federation(Problem(Normed(), blobs()))
    assert Submodel(rates=RATES).remarks(fed) == ()
    (said,) = Submodel(rates=RATES, scaler=True).remarks(fed)
    assert "the scaler has no effect on first: a norm follows" in said.sentence
    assert Submodel(scaler=True).remarks(federation(small_problem())) == ()
    with pytest.warns(UserWarning, match="the scaler has no effect on first"):
        train(Problem(Normed(), blobs()), "fedavg", rates="1,1/2", scaler=True, rounds=1,
              strategy="stacked", baseline=False)  # fmt: skip
