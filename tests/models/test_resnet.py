"""Pre-activation ResNet-18: its size, its cost at small rates, and its batch norm."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg, Submodel
from fedkin.models import build
from fedkin.models.layout import Layout
from fedkin.models.widths import Widths, narrow
from fedkin.runs.evaluation import score_model
from tests.helpers import blobs, federation, run

SHAPE = (3, 32, 32)


def training_flops(module):
    x, y = torch.randn(4, *SHAPE), torch.randint(0, 10, (4,))
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(module(x), y).backward()
    return counter.get_total_flops()


def test_the_full_model_is_the_published_one():
    module = build("resnet18", SHAPE, 10)
    # 11,171,146 without the norm before the last layer, which pre-activation asks for
    assert Layout.of(module).size == 11_171_146 + 2 * 512
    assert module(torch.randn(2, *SHAPE)).shape == (2, 10)


def test_a_client_of_rate_one_sixteenth_needs_a_thirtieth_of_the_work_and_far_fewer_bytes():
    whole = build("resnet18", SHAPE, 10)
    widths = Widths.of(whole, torch.zeros(2, *SHAPE))
    small = narrow(whole, widths, 1 / 16)
    assert training_flops(small) < training_flops(whole) / 30
    share = Layout.of(whole).size / Layout.of(small).size
    assert 190 < share < 256


def test_a_first_layer_of_stride_two_leaves_a_quarter_of_the_work_and_all_parameters():
    whole, strided = build("resnet18:8", SHAPE, 10), build("resnet18:8,2", SHAPE, 10)
    assert training_flops(strided) == pytest.approx(training_flops(whole) / 4, rel=0.01)
    assert Layout.of(strided).size == Layout.of(whole).size


def small_images(clients=3):
    return blobs(clients=clients, samples=20, dimension=3 * 64, shape=(3, 8, 8))


@pytest.mark.parametrize("model", ["resnet18:4", "resnet18-gn:4"])
def test_mixed_sub_models_of_a_resnet_agree_between_engines(model):
    module, data = build(model, (3, 8, 8), 3), small_images()
    problem = Problem(module, data, batch_size=8, dtype=torch.float64)
    method = Submodel(rates=(1.0, 0.5, 0.25), kind="random", local_steps=2, lr=0.05)
    feds = [federation(problem, strategy="autograd"), federation(problem, "wire")]
    models = [run(method, fed, 2).x for fed in feds]
    torch.testing.assert_close(models[0], models[1], rtol=0, atol=1e-8)
    losses = [score_model(fed, models[0]).loss for fed in feds]
    torch.testing.assert_close(losses[0], losses[1])


@pytest.mark.parametrize("samples", [20, 16])
@pytest.mark.parametrize("reshuffle", [False, True])
def test_batch_norm_gives_the_same_numbers_stacked_and_one_by_one(samples, reshuffle):
    data = blobs(clients=4, samples=samples, dimension=3 * 256, shape=(3, 16, 16))
    module = build("resnet18:2", (3, 16, 16), 3)
    problem = Problem(module, data, batch_size=8, reshuffle=reshuffle, dtype=torch.float64)
    feds = [federation(problem, strategy=s) for s in ("vmap:3:1x1", "autograd:1:1x1")]
    models = [run(FedAvg(local_steps=5, lr=0.05), fed, 2).x for fed in feds]
    torch.testing.assert_close(models[0], models[1], rtol=0, atol=1e-9)
    for step in (whole_gradient, whole_loss):
        answers = [fed.map(step, shared={"x": models[0]})["it"] for fed in feds]
        torch.testing.assert_close(answers[0], answers[1], rtol=0, atol=1e-9)


def whole_gradient(client, x):
    return {"it": client.full_grad(x)}


def whole_loss(client, x):
    return {"it": client.full_loss(x)}


def test_batch_norm_goes_by_training_statistics_when_a_model_is_judged():
    problem = Problem(build("resnet18:2", (3, 8, 8), 3), small_images(1), batch_size=8)
    model = problem.initial[0] + 0.05
    scores = score_model(federation(problem), model)
    module = problem.module(model)
    norms = [m for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    with torch.no_grad():
        for norm in norms:  # ordinary batch norm that has seen the training data once
            norm.track_running_stats, norm.momentum = True, None
            norm.running_mean = torch.zeros(norm.num_features)
            norm.running_var = torch.ones(norm.num_features)
            norm.num_batches_tracked = torch.tensor(0)
        module.train()(problem.data.train.x)
        outputs = module.eval()(problem.data.test.x)
    loss = torch.nn.functional.cross_entropy(outputs, problem.data.test.y)
    torch.testing.assert_close(scores.loss[0].item(), loss.item(), rtol=1e-4, atol=1e-5)


def test_small_or_flat_inputs_are_refused():
    with pytest.raises(FedkinError, match="8x8"):
        build("resnet18", (3, 4, 4), 10)
    with pytest.raises(FedkinError, match="16x16"):
        build("resnet18:4,2", (3, 8, 8), 10)
    with pytest.raises(FedkinError, match="resnet needs images"):
        build("resnet18", (60,), 10)
