"""Scores on training data, where asked for."""

import pytest

from fedkin.core.problem import Problem
from fedkin.models import build
from fedkin.runs.evaluation import score_model
from fedkin.runs.train import train
from tests.helpers import blobs


def test_train_scores_are_those_of_the_last_models_on_training_data():
    problem = Problem(build("mlp:8", (5,), 3), blobs())
    run = train(problem, "fedavg", rounds=4, eval_every=2, train_scores=True, baseline=False)
    contender = run.trainer.contenders["method"]
    expected = score_model(contender.fed, contender.state.x, "train").loss.mean().item()
    losses = run.metrics["global_train_loss"]
    assert losses.iloc[-1] == pytest.approx(expected)
    assert losses.isna().tolist() == [True, False, True, False]
    # FedAvg's personal models are the global one
    assert run.metrics["train_loss"].iloc[-1] == pytest.approx(expected)


def test_without_asking_there_are_no_such_columns():
    problem = Problem(build("mlp:8", (5,), 3), blobs())
    run = train(problem, "fedavg", rounds=1, baseline=False)
    assert not any("train_" in name for name in run.metrics)
