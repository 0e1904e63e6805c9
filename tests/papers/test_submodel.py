"""Sub-model experiments: stability, and reports beside what was printed."""

import torch

from fedkin.evaluation import score_model, score_pooled
from fedkin.models import build
from fedkin.papers import gap, submodel
from fedkin.papers.recipe import Line, Recipe
from fedkin.papers.reproduce import reproduce
from fedkin.papers.stability import stability
from fedkin.problem import Problem
from tests.helpers import blobs, federation


def test_models_move_less_with_a_sample_the_fewer_coordinates_clients_hold():
    table = stability(rates=(1.0, 0.5, 0.25), pairs=8, rounds=10)
    assert table["distance"].is_monotonic_decreasing
    assert table["distance"].iloc[0] > 1.5 * table["distance"].iloc[2] > 0


def test_pooled_scores_are_means_over_all_examples():
    problem = Problem(build("mlp:8", (5,), 3), blobs())
    scores = score_model(federation(problem), problem.initial[0])
    pooled = score_pooled(problem, problem.initial[0])
    torch.testing.assert_close(pooled.loss, scores.overall(scores.loss), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pooled.accuracy, scores.overall(scores.accuracy))


def test_pooled_batch_norm_goes_by_everybodys_training_data():
    data = blobs(clients=2, samples=20, dimension=192, shape=(3, 8, 8))
    problem = Problem(build("resnet18:2", (3, 8, 8), 3), data)
    module = problem.module(problem.initial[0])
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.__init__(part.num_features, momentum=None)
    module.train()(data.train.x)
    loss = torch.nn.functional.cross_entropy(module.eval()(data.test.x), data.test.y)
    found = score_pooled(problem, problem.initial[0]).loss
    torch.testing.assert_close(found, loss.item(), rtol=1e-4, atol=1e-4)


def test_gaps_bytes_and_seconds_are_told_for_every_line(tmp_path, monkeypatch):
    rates = {"full model": (1.0,), "random, mixed": (1.0, 0.5)}
    lines = tuple(
        Line(label, "submodel", {"kind": "random", "rates": r}) for label, r in rates.items()
    )
    run = {
        "data": {"name": "digits", "num_clients": 4},
        "model": {"name": "mlp:8"},
        "rounds": 2,
        "baseline": False,
    }
    recipe = Recipe("digits", run, lines, "global")
    monkeypatch.setitem(submodel.RECIPES, "figures-digits-high", recipe)
    reproduce(recipe, tmp_path, 1)
    table = gap.gaps("figures-digits-high", tmp_path, 1).set_index("line")
    whole, half = 8 * 64 + 8 + 10 * 8 + 10, 4 * 64 + 4 + 10 * 4 + 10
    assert table.loc["full model", "bytes_share"] == 1
    assert table.loc["random, mixed", "bytes_share"] == (whole + half) / (2 * whole)
    assert table["rate"].tolist() == [1.0, 0.75]
    assert table["printed_rate"].tolist() == [1.0, 0.3898]
    assert table["printed_loss_gap"].tolist() == [0.0190, 0.0126]
    assert (table["seconds_per_round"] > 0).all()
    assert table["test_accuracy"].between(0, 100).all()
