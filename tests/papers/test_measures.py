"""What is read off runs, against tables written by hand."""

import math
from threading import Event

import numpy as np
import pandas as pd
import pytest
import torch

from fedkin.core.problem import Problem
from fedkin.models import build
from fedkin.papers import measures
from fedkin.runs.comparison import Entry, execute
from fedkin.runs.config import make_config
from fedkin.runs.evaluation import score_model
from fedkin.runs.groups import Records
from fedkin.runs.inputs import keep_inputs
from fedkin.runs.pooled import score_pooled
from tests.helpers import blobs, federation


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.toml").write_text('method = "fedavg"\n')
    return tmp_path


def write(folder, name, **columns):
    (folder / name).parent.mkdir(exist_ok=True)
    pd.DataFrame(columns).to_csv(folder / name, index=False)


def test_accuracy_counts_test_samples_of_the_last_evaluation(folder):
    write(folder, "clients.csv", round=[1, 1, 2, 2], client=["a", "b", "a", "b"],
          personal_accuracy=[0.0, 0.0, 1.0, 0.5], global_accuracy=[None] * 4,
          test_samples=[30, 10, 30, 10])  # fmt: skip
    run = Records(folder)
    assert measures.accuracy("personal").of(run) == pytest.approx(100 * (30 + 5) / 40)
    assert measures.accuracy("global").of(run) is None


def test_guessing_is_right_once_in_as_many_times_as_there_are_classes(folder):
    # this model's last numbers are those of a norm, and more than its classes
    data = blobs(clients=2, dimension=192, shape=(3, 8, 8))
    keep_inputs(folder, Problem(build("resnet18:4", (3, 8, 8), data.num_classes), data))
    assert measures.CHANCE.of(Records(folder)) == pytest.approx(100 / 3)


def test_a_constant_answer_is_each_clients_commonest_training_class(folder):
    random = np.random.default_rng(0)
    own = [random.integers(0, 3, 40) for _ in range(4)]
    np.savez(folder / "own.npz", x=random.normal(size=(160, 2)), y=np.concatenate(own),
             client=np.repeat(range(4), 40))  # fmt: skip
    values = {"method": "fedavg", "data": {"name": "npz", "path": str(folder / "own.npz")}}
    config = make_config(values)
    (folder / "config.toml").write_text(config.to_toml())
    data, right, asked = config.make_data(), 0, 0
    for i in range(4):
        trained, tested = (part[i][1].tolist() for part in (data.train, data.test))
        commonest = max(range(3), key=trained.count)
        right, asked = right + tested.count(commonest), asked + len(tested)
    assert measures.CONSTANT.of(Records(folder)) == pytest.approx(100 * right / asked)


def test_columns_are_read_at_the_end_or_at_a_round(folder):
    write(folder, "metrics.csv", round=[1, 2, 3, 4], loss=[4.0, 3.0, None, 1.0])
    run = Records(folder)
    assert measures.last("loss", "", "").of(run) == 1
    assert measures.at_round("loss", 3, "", "", times=10).of(run) == 30
    assert measures.last("other", "", "").of(run) is None


def test_seconds_leave_out_the_first_fifth(folder):
    write(folder, "timing.csv", round=range(1, 6), seconds=[100, 1, 2, 3, 4])
    assert measures.SECONDS.of(Records(folder)) == 2.5


def test_weights_all_the_same_have_evenness_one_and_weights_on_oneself_zero(folder):
    for weights, evenness, distances in ((np.full((4, 4), 0.25), 1.0, 0.5), (np.eye(4), 0.0, 0.0)):
        columns = {str(i): weights[:, i] for i in range(4)}
        write(folder, "mixing.csv", client=list("abcd"), **columns)
        write(folder, "labels.csv", client=list("abcd"), **{"(group)": [0, 0, 1, 1]})
        run = Records(folder)
        assert measures.EVENNESS.of(run) == pytest.approx(evenness)
        assert measures.OFF_GROUP.of(run) == pytest.approx(distances)


def test_without_planted_groups_kinds_are_commonest_classes(folder):
    write(folder, "mixing.csv", client=list("ab"), **{"0": [0.9, 0.3], "1": [0.1, 0.7]})
    write(folder, "labels.csv", client=list("ab"), zero=[5, 0], one=[1, 3])
    assert measures.OFF_GROUP.of(Records(folder)) == pytest.approx((0.1 + 0.3) / 2)


def test_clusters_settle_when_nobody_moves_at_the_end(folder):
    rounds = range(1, 12)
    moves = [i % 2 if i < 10 else 1 for i in range(11)]
    write(folder, "diagnostics/cluster.csv", round=rounds, **{"0": [0] * 11, "1": moves})
    # of the last two of ten changes one moves client 1: half of the clients, half of the time
    assert measures.CHANGES.of(Records(folder)) == 0.25
    distance = [math.exp(-i) for i in range(11)]
    write(folder, "diagnostics/group_distance.csv", round=rounds, **{"0": distance})
    assert measures.UNREST.of(Records(folder)) == pytest.approx(math.exp(-8))


def test_iterations_of_k_means_are_means_over_a_fifth(folder):
    write(folder, "metrics.csv", round=range(10), kmeans_iterations=[9, 7, *[5] * 6, 2, 1])
    run = Records(folder)
    assert measures.FIRST_ITERATIONS.of(run) == 8
    assert measures.LAST_ITERATIONS.of(run) == 1.5


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


def test_gaps_of_smaller_models(tmp_path):
    options = {"kind": "random", "rates": (1.0, 0.5)}
    run = {"data": {"name": "digits", "num_clients": 4}, "model": {"name": "mlp:8"}, "rounds": 2}
    config = make_config({**run, "baseline": False, "method": "submodel", "options": options})
    entry = Entry("submodel", 0, config)
    assert not execute([entry], tmp_path, lambda c, d: c.to_toml(), lambda label: None, Event())
    found = Records(entry.folder(tmp_path))
    scores = {name: measures.pooled(name, "").of(found) for name in measures.POOLED}
    assert scores["loss_gap"] == pytest.approx(scores["test_loss"] - scores["train_loss"])
    # the loss at all clients' test data is the mean that metrics.csv has, by their sizes
    last = found.clients[found.clients["round"] == 2]
    mean = np.average(last["global_loss"], weights=last["test_samples"])
    assert scores["test_loss"] == pytest.approx(mean, rel=1e-5)
