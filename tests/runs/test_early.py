"""Early stopping ends where it should, and leaves the models of the best round."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from fedkin import train
from fedkin.core.metrics import METRICS
from fedkin.core.problem import Problem
from fedkin.data import DataConfig, load
from fedkin.errors import FedkinError
from fedkin.methods import Ditto, FedAvg
from fedkin.models import build
from fedkin.runs import early
from fedkin.runs.early import best_round, waited
from fedkin.runs.folder import RunFolder
from fedkin.runs.groups import Records
from fedkin.runs.measures import ACCURACY, LOSS, Measure
from fedkin.runs.settings import Settings
from fedkin.runs.training import Trainer
from tests.run_command import Fedkin

# few samples, many steps: models overfit within some rounds
SETTINGS = Settings(rounds=40, eval_every=2, checkpoint_every=7, patience=6, strategy="stacked")
METHOD = Ditto(lr=0.3, local_steps=10, lam=0.01)


@pytest.fixture(scope="module")
def problem() -> Problem:
    config = DataConfig(name="digits", num_clients=6, alpha=0.5, validation_fraction=0.4)
    data = load(config, 0)
    return Problem(build("mlp:16", data.input_shape, 10), data, batch_size=4)


def rows(name: str, **scores: float | None) -> list[dict]:
    return [{"round": int(n[1:]), f"validation_{name}": score} for n, score in scores.items()]


def test_the_best_round_is_the_first_of_the_best() -> None:
    found = rows("accuracy", r1=None, r2=0.5, r3=None, r4=0.7, r6=0.7, r8=0.6)
    assert best_round(found, ACCURACY) == 4
    assert [waited(found, ACCURACY, patience) for patience in (4, 5, None)] == [True, False, False]
    assert best_round(rows("loss", r2=3.0, r4=2.0, r6=2.5), LOSS) == 4
    assert best_round(rows("accuracy", r1=None), ACCURACY) == 0
    assert not waited([], ACCURACY, 1)


def test_it_ends_after_patience_with_the_models_of_the_best_round(problem, tmp_path) -> None:
    long = train(problem, METHOD, rounds=40, eval_every=2, strategy="stacked")
    scores = long.metrics.set_index("round")["validation_accuracy"].dropna()
    running, best = -1.0, 0
    for number, score in scores.items():  # by hand
        running, best = (score, number) if score > running else (running, best)
        if number - best >= 6:
            break
    assert 0 < best < number <= 40
    kept = RunFolder.create(tmp_path / "run", 'method = "ditto"\nrounds = 40\n')
    trainer = Trainer(problem, METHOD, SETTINGS, kept)
    run = trainer.run()
    assert (trainer.round, trainer.done) == (best, True)
    assert run.accuracy == long.metrics.set_index("round")["personal_accuracy"][best]
    assert pd.read_csv(tmp_path / "run" / "all_rounds" / "metrics.csv")["round"].max() == number
    assert Records(tmp_path / "run").finished
    exact = train(problem, METHOD, rounds=best, eval_every=2, strategy="stacked")
    live = train(problem, METHOD, rounds=40, eval_every=2, patience=6, strategy="stacked")
    for client in range(6):
        for found in (run, live):
            pairs = zip(found.personal[client].parameters(), exact.personal[client].parameters(),
                        strict=True)  # fmt: skip
            assert all(torch.equal(a, b) for a, b in pairs)


def test_a_run_killed_before_and_after_its_end_comes_to_the_same(problem, tmp_path) -> None:
    def folder(name: str) -> RunFolder:
        return RunFolder.create(tmp_path / name, 'method = "ditto"\n')

    whole = Trainer(problem, METHOD, SETTINGS, folder("whole"))
    whole.run()
    halted = Trainer(problem, METHOD, SETTINGS, folder("halted"))
    for _ in range(whole.round + 1):
        halted.step()
    again = Trainer(problem, METHOD, SETTINGS, halted.folder)
    again.resume()
    again.run()
    ended = Trainer(problem, METHOD, SETTINGS, halted.folder)
    assert ended.resume() == []
    ended.run()
    assert ended.round == whole.round
    one, other = Path(tmp_path / "whole"), Path(tmp_path / "halted")
    assert (one / "metrics.csv").read_text() == (other / "metrics.csv").read_text()
    for path in (one / "models").iterdir():
        assert path.read_bytes() == (other / "models" / path.name).read_bytes()


def test_patience_needs_validation_data(fedkin: Fedkin) -> None:
    data = load(DataConfig(name="digits", num_clients=3), 0)
    with pytest.raises(FedkinError, match="patience needs validation data"):
        train(Problem(build("mlp:4", data.input_shape, 10), data), FedAvg(), patience=3)
    words = ("--data", "digits", "--num-clients", 3, "--model", "mlp:4", "--lr", 0.3)
    early = ("--rounds", 30, "--patience", 2, "--eval-every", 1, "--local-steps", 30, "-q")
    said = fedkin("run", "local", *words, *early, "--validation-fraction", 0.3, "--out", "run")
    assert said.code == 0, said.err
    assert "the best by validation data" in said.out
    assert "is finished" in fedkin("resume", "run").out
    assert fedkin("report", "run").code == 0
    assert fedkin("run", "local", *words, *early).code == 2


def test_the_deciding_metric_tells_which_way_is_better():
    rows = [{"round": r, "validation_auc": v, "validation_rmse": v}
            for r, v in ((1, 0.5), (2, 0.9), (3, 0.4), (4, 0.6))]  # fmt: skip
    auc, rmse = (Measure.of(METRICS[name]) for name in ("auc", "rmse"))
    assert (early.best_round(rows, auc), early.best_round(rows, rmse)) == (2, 3)
    assert early.waited(rows, auc, 2)
    assert not early.waited(rows, rmse, 2)
