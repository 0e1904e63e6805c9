"""A global model that everybody uses is scored once, and its scores are right."""

import torch

from fedkin.core.problem import Problem
from fedkin.models import build
from fedkin.runs.evaluation import score_model
from fedkin.runs.scoring import is_used_by_all
from fedkin.runs.settings import Settings
from fedkin.runs.training import Trainer
from tests.helpers import blobs, make_named


def trained(name: str) -> Trainer:
    settings = Settings(rounds=2, baseline=False, train_scores=True, strategy="stacked")
    problem = Problem(build("mlp:8", (5,), 3), blobs())
    trainer = Trainer(problem, make_named(name), settings)
    trainer.run()
    return trainer


def test_the_global_models_scores_are_its_own() -> None:
    for name, shared in (("fedavg", True), ("scaffold", True), ("ditto", False), ("apfl", False)):
        trainer = trained(name)
        own = trainer.contenders["method"]
        model = own.method.global_model(own.state)
        assert model is not None
        assert is_used_by_all(model, own.models(2)) == shared
        for part, column in (("test", "global_loss"), ("train", "global_train_loss")):
            expected = score_model(own.fed, model, part).loss.nanmean()
            found = torch.tensor(trainer.metrics[-1][column], dtype=torch.float64)
            torch.testing.assert_close(found, expected)
