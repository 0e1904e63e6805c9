"""Personal models on disk, each of its own size."""

import pytest
import torch

from fedkin.core.problem import Problem
from fedkin.methods import Submodel
from fedkin.models import build
from fedkin.runs import models
from fedkin.runs.evaluation import score
from fedkin.runs.train import train
from tests.helpers import blobs, federation, run


@pytest.mark.parametrize("many", [False, True])
def test_models_of_every_size_come_back_as_they_were(tmp_path, monkeypatch, many):
    monkeypatch.setattr(models, "MANY", 3 if many else 100)
    problem = Problem(build("mlp:12", (5,), 3), blobs())
    fed, method = federation(problem), Submodel(rates=(1.0, 2 / 3, 0.25), lr=0.1)
    state = run(method, fed, 2)
    fed.after_round(2)
    models.save_models(tmp_path, fed, method, state)
    fed.after_round(2)
    scores = score(fed, method.personal(fed, state))
    for client, rate in enumerate(state.rates.tolist()):
        own_size, vector = models.load_model(tmp_path, problem, client, problem.data.names[client])
        assert own_size.spec.module[1].out_features == round(12 * rate)
        x, y = problem.data.test[client]
        loss = torch.nn.functional.cross_entropy(own_size.module(vector)(x), y)
        torch.testing.assert_close(loss.double(), scores.loss[client])


def test_a_folder_has_the_models_that_were_evaluated(tmp_path):
    """Also if they take random steps at home, and more was measured before they were written."""
    problem = Problem(build("mlp:8", (5,), 3), blobs())
    method = Submodel(rates=(1.0, 0.5), lr=0.1, tune_steps=3)
    found = train(problem, method, rounds=2, baseline=False, folder=tmp_path / "run")
    for client, name in enumerate(problem.data.names):
        own, vector = models.load_model(tmp_path / "run" / "models", problem, client, name)
        x, y = problem.data.test[client]
        loss = torch.nn.functional.cross_entropy(own.module(vector)(x), y).item()
        assert loss == pytest.approx(found.clients["personal_loss"].iloc[client], rel=1e-4)


def test_a_run_gives_modules_of_every_size():
    problem = Problem(build("mlp:8", (5,), 3), blobs())
    run = train(problem, Submodel(rates=(1.0, 0.25)), rounds=2, baseline=False, strategy="stacked")
    assert sorted(module[1].out_features for module in run.personal.values()) == [2] * 3 + [8] * 3


def test_batch_norm_down_to_a_single_pixel_leaves_a_folder(tmp_path):
    data = blobs(clients=2, samples=12, dimension=64, shape=(1, 8, 8))
    problem = Problem(build("resnet18:2", (1, 8, 8), 3), data, batch_size=6)
    method = Submodel(rates=(1.0, 0.5), local_steps=1)
    kept = {"baseline": False, "strategy": "autograd:1:1x1", "folder": tmp_path / "run"}
    train(problem, method, rounds=1, **kept)
    assert (tmp_path / "run" / "models" / "client-0001.safetensors").exists()
