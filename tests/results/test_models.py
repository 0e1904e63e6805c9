"""Personal models on disk, each of its own size."""

import pytest
import torch

from fedkin.evaluation import score
from fedkin.methods import Submodel
from fedkin.models import build
from fedkin.problem import Problem
from fedkin.results import models
from fedkin.training import train
from tests.helpers import blobs, federation, run


@pytest.mark.parametrize("many", [False, True])
def test_models_of_every_size_come_back_as_they_were(tmp_path, monkeypatch, many):
    monkeypatch.setattr(models, "MANY", 3 if many else 100)
    problem = Problem(build("mlp:8", (5,), 3), blobs())
    fed, method = federation(problem), Submodel(rates=(1.0, 0.5, 0.25), lr=0.1)
    state = run(method, fed, 2)
    models.save_models(tmp_path, fed, method, state)
    scores = score(fed, method.personal(fed, state))
    for client, rate in enumerate(state.rates.tolist()):
        own_size, vector = models.load_model(tmp_path, problem, client, problem.data.names[client])
        assert own_size.spec.module[1].out_features == 8 * rate
        x, y = problem.data.test[client]
        loss = torch.nn.functional.cross_entropy(own_size.module(vector)(x), y)
        torch.testing.assert_close(loss.double(), scores.loss[client])


def test_a_run_gives_modules_of_every_size():
    problem = Problem(build("mlp:8", (5,), 3), blobs())
    run = train(problem, Submodel(rates=(1.0, 0.25)), rounds=2, baseline=False, strategy="stacked")
    assert sorted(module[1].out_features for module in run.personal.values()) == [2] * 3 + [8] * 3
