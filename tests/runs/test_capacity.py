"""Reports per capacity level."""

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg, SubmodelLocal
from fedkin.models import build
from fedkin.reports.maps import capacity_cost_plot
from fedkin.runs.capacity import (
    PeakBytes,
    accuracy_by_rate,
    accuracy_by_rate_of,
    cost_by_rate,
    draw_accuracy_against_bytes,
)
from fedkin.runs.groups import Group, Records
from fedkin.runs.measures import ACCURACY
from fedkin.runs.train import train
from tests.helpers import blobs, federation, least_squares, run


def small_problem(model="mlp:16"):
    return Problem(build(model, (5,), 3), blobs())


def test_every_level_is_reported_with_its_own_clients(tmp_path):
    fed, method = federation(small_problem()), SubmodelLocal(rates=(1.0, 0.5, 0.25), lr=0.1)
    table = accuracy_by_rate(fed, method, run(method, fed, 20))
    assert table["rate"].tolist() == [1.0, 0.5, 0.25]
    assert table["clients"].tolist() == [2, 2, 2]
    assert table["accuracy"].between(0.6, 1).all()
    assert table["accuracy_gap"].abs().max() < 0.5
    # 16, 8 and 4 units of 5 inputs, 1 bias and 3 outputs, 3 biases; 4 bytes, both ways, 2 clients
    assert table["bytes_per_round"].tolist() == [16 * (9 * units + 3) for units in (16, 8, 4)]
    draw_accuracy_against_bytes(table, tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").stat().st_size > 5000


def test_a_run_folder_tells_the_same(tmp_path):
    method = SubmodelLocal(rates=(1.0, 0.5, 0.25), lr=0.1)
    train(small_problem(), method, rounds=3, baseline=False, folder=tmp_path / "run")
    fed = federation(small_problem())
    table = accuracy_by_rate(fed, method, run(method, fed, 3))
    stored = accuracy_by_rate_of(tmp_path / "run")
    assert stored["bytes_per_round"].tolist() == table["bytes_per_round"].tolist()
    assert stored["clients"].tolist() == [2, 2, 2]
    assert stored["accuracy"].between(0, 1).all()
    kept = pd.read_csv(tmp_path / "run" / "capacity.csv")
    for column in stored:
        assert kept[column].tolist() == pytest.approx(stored[column].tolist(), abs=1e-6)
    assert kept["accuracy_gap"].abs().max() < 0.5
    assert kept["parameters"].tolist() == [9 * units + 3 for units in (16, 8, 4)]
    assert (kept["step_seconds"] > 0).all()
    assert (tmp_path / "run" / "capacity.png").stat().st_size > 5000
    drawing = capacity_cost_plot([Group("sized", (Records(tmp_path / "run"),))], ACCURACY)
    assert drawing is not None
    assert drawing.numbers["parameters"].tolist() == [9 * units + 3 for units in (4, 8, 16)]
    assert "A step of training, its time and its memory: sized at 0.25:" in drawing.words
    with pytest.raises(FedkinError, match="no finished run with rates"):
        accuracy_by_rate_of(tmp_path)


def test_runs_without_classes_are_drawn_by_their_loss(tmp_path):
    method = SubmodelLocal(rates=(1.0, 0.5), lr=0.01)
    problem = Problem(build("mlp:8", (3,), 1), least_squares().data)
    train(problem, method, rounds=2, baseline=False, folder=tmp_path / "run")
    kept = pd.read_csv(tmp_path / "run" / "capacity.csv")
    assert kept["accuracy"].isna().all()
    assert (kept["loss"] > 0).all()
    assert (tmp_path / "run" / "capacity.png").stat().st_size > 5000


def test_levels_without_traffic_are_drawn(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    table = pd.DataFrame({"rate": [1.0, 0.5], "accuracy": [0.9, 0.8], "clients": [2, 2]})
    for first in (8e6, 0):
        table["bytes_per_round"] = [first, 4e6]
        draw_accuracy_against_bytes(table, tmp_path / "picture.png")
    assert [figure.axes[0].get_xscale() for figure in drawn] == ["log", "linear"]


def test_the_command_shows_every_level(tmp_path, fedkin):
    words = ("--data", "digits", "--num-clients", 4, "--rates", "1,1/4", "--rounds", 2, "-q")
    said = fedkin("run", "fedavg", *words, "--out", tmp_path / "run")
    assert said.code == 0
    for word in ("peak MB", "0.25", "train minus test accuracy"):
        assert word in " ".join(said.out.split())


def test_a_method_without_rates_says_so():
    fed, method = federation(small_problem()), FedAvg()
    with pytest.raises(FedkinError, match="no rates"):
        accuracy_by_rate(fed, method, run(method, fed, 1))


def test_costs_fall_with_the_rate():
    data = blobs(dimension=3 * 256, shape=(3, 16, 16))
    problem = Problem(build("resnet18:16", (3, 16, 16), 3), data, batch_size=4)
    table = cost_by_rate(problem, (1.0, 0.25), local_steps=2, repeats=1)
    small = problem.initial.numel() / table["parameters"][1]
    assert 10 < small < 16
    assert table["bytes"][0] == 2 * 4 * problem.size
    assert table["flops"][1] < table["flops"][0] / 8
    assert table["peak_bytes"][1] < table["peak_bytes"][0] / 3
    assert (table["seconds"] > 0).all()


def test_peak_memory_is_that_of_tensors_alive_together():
    with PeakBytes() as peak:
        a = torch.zeros(1000)
        b = a + 1
        del a
        c = b * 2
        b.view(10, 100)
        del b
    assert peak.bytes == 8000
    assert len(c) == 1000
