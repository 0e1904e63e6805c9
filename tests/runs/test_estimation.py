"""Distances to the models that generators drew labels from."""

import math

import numpy as np
import pytest
import torch

from fedkin.data import DataConfig, load
from fedkin.runs.config import make_config
from fedkin.runs.estimation import true_models
from fedkin.runs.training import Trainer

MIXTURE = {"name": "unified-synthetic", "num_clients": 6, "samples": 40, "dim": 4}
MODEL = {"name": "linear-no-bias", "loss": "logistic", "batch_size": 5, "dtype": "float64"}


def trained(method, data=MIXTURE, model=MODEL, **options):
    config = make_config(
        {"method": method, "data": data, "model": model, "rounds": 4, "eval_every": 2,
         "options": options, "baseline": False}
    )  # fmt: skip
    return Trainer(config.make_problem(config.make_data()), config.make_method(), config.settings())


def test_labels_are_drawn_from_the_models_given_away():
    """As many ones as 1/(1 + exp(-beta*.x)) adds up to, within five deviations."""
    for name in ("unified-synthetic", "unified-ws"):
        data = load(DataConfig(name=name, samples=4000), 3)
        assert data.truth.betas.shape == (20, 15)
        for m in range(20):
            x, y = data.train[m]
            p = torch.sigmoid(x.double() @ data.truth.betas[m])
            assert abs(float(y.sum() - p.sum())) < 5 * math.sqrt(float((p * (1 - p)).sum())) + 1e-9
    shared = load(DataConfig(name="unified-ws"), 0).truth.betas[:, :10]
    assert (shared == shared[0]).all()


def test_betas_of_figure_1_lie_around_w_by_mu_m():
    truth = load(DataConfig(name="unified-synthetic", spread=1.0), 0).truth
    assert ((truth.w >= 0.49) & (truth.w <= 0.51)).all()
    apart = truth.betas - truth.w
    assert (apart.amax(1) - apart.amin(1) <= 0.02).all()


def test_regression_has_the_truth_that_least_squares_finds():
    data = load(DataConfig(name="linear", samples=4000, noise=0.01), 0)
    x, y = (t.numpy() for t in data.train[2])
    found = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(found, data.truth.betas[2], atol=1e-2)


@pytest.mark.parametrize("method", ["lsgd", "pfedme", "l2sgd", "ascd"])
def test_runs_record_how_far_their_models_are_from_the_truth(method):
    trainer = trained(method)
    result = trainer.run()
    contender, truth = trainer.contenders["method"], trainer.problem.data.truth
    models = contender.fed.look(contender.models(4))["model"]
    personal = ((models - truth.betas) ** 2).sum(1).mean()
    shared = ((contender.method.global_model(contender.state) - truth.w) ** 2).sum()
    row = result.metrics.iloc[-1]
    assert row["personal_error"] == pytest.approx(float(personal) ** 0.5)
    assert row["global_error"] == pytest.approx(float(shared) ** 0.5)
    assert row["estimation_error"] == pytest.approx(float(personal + shared) ** 0.5)
    assert math.isnan(result.metrics.iloc[0]["estimation_error"])  # not an evaluated round


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ({**MIXTURE, "partition": "iid"}, MODEL),
        ({**MIXTURE, "standardise": True}, MODEL),
        (MIXTURE, {"name": "logistic"}),
        (MIXTURE, {"name": "mlp:3"}),
    ],
)
def test_where_the_truth_is_another_nothing_is_recorded(data, model):
    result = trained("fedavg", data, model).run()
    assert "estimation_error" not in result.metrics


def test_the_true_bias_is_zero():
    data = {"name": "linear", "num_clients": 3, "samples": 20, "dim": 2}
    betas, w = true_models(trained("fedavg", data, {"name": "linear"}).problem)
    assert betas.shape == (3, 3)
    assert (betas[:, 2] == 0).all()
    assert w[2] == 0
