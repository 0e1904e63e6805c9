"""Trackers are told every round, and never stop a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedkin
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg
from fedkin.models import build
from tests.helpers import blobs


class Notebook:
    """A tracker of one's own: it writes down what it is told."""

    def __init__(self, fails_in: int | None = None) -> None:
        self.said: list[Any] = []
        self.fails_in = fails_in

    def begin(self, name: str, settings: Mapping[str, Any], done: int) -> None:
        self.said.append(("begin", name, settings["options.lr"], done))

    def log(self, number: int, measures: Mapping[str, float]) -> None:
        if number == self.fails_in:
            raise ConnectionError("the service is down")
        self.said.append((number, dict(measures)))

    def end(self, finished: bool) -> None:
        self.said.append(("end", finished))


def problem() -> fedkin.Problem:
    data = blobs(4)
    return fedkin.Problem(build("linear", data.input_shape, data.num_classes), data)


def test_a_tracker_of_ones_own_is_told_what_metrics_say() -> None:
    own = Notebook()
    run = fedkin.train(problem(), FedAvg(lr=0.1), rounds=4, eval_every=2, trackers=[own])
    assert own.said[0] == ("begin", "fedavg", 0.1, 0)
    assert own.said[-1] == ("end", True)
    assert [number for number, _ in own.said[1:-1]] == [1, 2, 3, 4]
    assert "personal_accuracy" not in own.said[1][1]  # not evaluated in round 1
    assert own.said[4][1]["personal_accuracy"] == run.accuracy
    assert own.said[4][1]["bytes_up"] == run.metrics["bytes_up"].iloc[-1]


def test_a_tracker_that_fails_does_not_stop_the_run() -> None:
    bad, good = Notebook(fails_in=2), Notebook()
    with pytest.warns(UserWarning, match="told nothing more of this run: the service is down"):
        run = fedkin.train(problem(), "fedavg", rounds=3, trackers=[bad, good])
    assert len(run.metrics) == 3
    assert len(bad.said) == 2
    assert len(good.said) == 5


def test_on_round_has_all_measures() -> None:
    seen: list[fedkin.Progress] = []
    run = fedkin.train(problem(), "fedavg", rounds=2, eval_every=2, on_round=seen.append)
    assert [done.round for done in seen] == [1, 2]
    assert seen[1].measures == run.metrics.iloc[1].to_dict()
    assert seen[0].measures["personal_loss"] is None


def test_an_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(FedkinError, match=r"unknown tracker 'mlfow' \(did you mean 'mlflow'\?\)"):
        fedkin.train(problem(), "fedavg", trackers=["mlfow"])


def test_tensorboard_has_the_numbers_of_metrics_csv(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = fedkin.train(
        problem(), "fedavg", rounds=3, eval_every=1, folder=tmp_path / "r", trackers=["tensorboard"]
    )
    events = accumulator.EventAccumulator(str(tmp_path / "r" / "tensorboard")).Reload()
    found = [(e.step, round(e.value, 5)) for e in events.Scalars("personal_loss")]
    assert found == [(i + 1, round(v, 5)) for i, v in enumerate(run.metrics["personal_loss"])]


def test_mlflow_has_the_numbers_and_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    run = fedkin.train(problem(), FedAvg(lr=0.25), rounds=2, eval_every=1, trackers=["mlflow"])
    client = mlflow.MlflowClient()
    place = client.get_experiment_by_name("fedkin").experiment_id
    (kept,) = client.search_runs([place])
    assert kept.data.params["options.lr"] == "0.25"
    assert kept.info.status == "FINISHED"
    found = {m.step: m.value for m in client.get_metric_history(kept.info.run_id, "personal_loss")}
    assert found == dict(zip([1, 2], run.metrics["personal_loss"], strict=True))


def test_weights_and_biases_keeps_a_run_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    fedkin.train(problem(), "fedavg", rounds=2, folder=tmp_path / "r", trackers=["wandb"])
    wandb.teardown()  # waits for its own process, which writes the file
    (kept,) = (tmp_path / "r").glob("wandb/offline-run-*/run-*.wandb")
    assert b"personal_loss" in kept.read_bytes()
