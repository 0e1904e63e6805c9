"""Losses that grow, against courses written by hand."""

from math import log

import pytest
from torch import nn

from fedkin.core.problem import Problem
from fedkin.errors import FedkinWarning
from fedkin.methods import FedAvg
from fedkin.runs.train import train
from fedkin.runs.watch import grown_loss
from tests.helpers import blobs, least_squares


def course(*losses, column="global_loss"):
    return [{"round": i + 1, column: loss} for i, loss in enumerate(losses)]


def test_a_loss_a_hundred_times_its_lowest_and_above_its_first_is_told():
    regression = least_squares()
    assert grown_loss(course(1.0, 0.5, None, 49.0), regression) is None
    told = grown_loss(course(1.0, 0.5, None, 51.0), regression)
    assert told == (
        "the loss of the global model has grown from 0.5 to 51 by round 4: training is not stable"
    )
    # nearly nothing times a hundred is still nearly nothing
    assert grown_loss(course(1.0, 1e-6, 1e-3), regression) is None
    assert grown_loss(course(50.0), regression) is None
    assert grown_loss(course(50.0, None), regression) is None


def test_the_first_loss_of_a_classifier_is_compared_with_that_of_knowing_nothing():
    classes = Problem(nn.Linear(5, 3), blobs())
    assert grown_loss(course(99 * log(3)), classes) is None
    assert grown_loss(course(101 * log(3)), classes) is not None


def test_losses_on_training_data_count_where_they_are_known():
    rows = [row | {"train_loss": 1.0, "global_train_loss": 1.0} for row in course(1.0, 500.0)]
    assert grown_loss(rows, least_squares()) is None
    rows[-1]["global_train_loss"] = 500.0
    assert "on training data" in grown_loss(rows, least_squares())


def test_any_method_that_grows_is_told_once_and_in_the_log(tmp_path):
    with pytest.warns(FedkinWarning, match="lower the learning rate") as told:
        train(least_squares(), FedAvg(lr=3.0, local_steps=1), rounds=40, folder=tmp_path / "run",
              baseline=False)  # fmt: skip
    assert [w.category for w in told].count(FedkinWarning) == 1
    assert (tmp_path / "run" / "log.txt").read_text().count("has grown from") == 1
