"""The gap to the mixture's optimum, measured from the models that runs leave behind."""

from threading import Event

import pytest
import torch

from fedkin.papers.mixture import GAP, optimum, value_and_slope
from fedkin.runs.comparison import Entry, execute
from fedkin.runs.config import make_config
from fedkin.runs.groups import Records
from tests.methods.unified_truth import LAM, Truth, logistic

RUN = {
    "data": {"name": "unified-synthetic", "num_clients": 4, "samples": 40, "dim": 3},
    "model": {"name": "linear-no-bias", "loss": "logistic", "l2": 0.1, "dtype": "float64"},
    "baseline": False,
}


def test_value_slope_and_optimum_are_those_of_the_mixture():
    truth = Truth(logistic(), "mx2")
    betas = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w = torch.ones(4, dtype=torch.float64)
    value, slope = value_and_slope(truth.problem, betas, w, LAM)
    at = torch.cat([2 * w, betas.flatten()]).requires_grad_()  # w/sqrt(M) is what betas are near
    (expected,) = torch.autograd.grad(truth.value(at), at)
    assert value == pytest.approx(truth.value(at).item())
    torch.testing.assert_close(slope.flatten(), expected[4:])
    assert optimum(truth.problem, LAM) == pytest.approx(truth.optimum()[1], rel=1e-9)


@pytest.mark.parametrize(
    ("method", "options", "rounds", "gap"),
    [
        ("acd", {"objective": "mx2", "lam": 0.3}, 150, 1e-9),
        ("l2sgd", {"lam": 0.3, "lr": 0.2, "p": 0.3}, 150, 1e-2),
        ("lsgd", {"objective": "mx2", "lam": 0.3}, 1, None),
    ],
)
def test_a_run_is_as_far_from_the_optimum_as_it_should_be(method, options, rounds, gap, tmp_path):
    values = {**RUN, "method": method, "options": options, "rounds": rounds}
    if gap is None:  # in single precision, as recipes have it
        values["model"] = {**RUN["model"], "dtype": "float32"}
    entry = Entry("run", 0, make_config({**values, "eval_every": rounds}))
    assert not execute([entry], tmp_path, lambda c, d: c.to_toml(), lambda label: None, Event())
    found = GAP.of(Records(entry.folder(tmp_path)))
    if gap is None:
        assert 0.1 < found < 1
    else:
        assert -1e-9 < found < gap


def test_runs_of_other_objectives_have_no_gap(tmp_path):
    entry = Entry("run", 0, make_config({**RUN, "method": "local", "rounds": 1}))
    assert not execute([entry], tmp_path, lambda c, d: c.to_toml(), lambda label: None, Event())
    assert GAP.of(Records(entry.folder(tmp_path))) is None
