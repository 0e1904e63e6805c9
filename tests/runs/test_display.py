"""How runs show themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedkin
from fedkin.methods import Perm
from fedkin.models import build
from fedkin.runs.names import cut
from tests.helpers import blobs, least_squares


def test_a_run_says_in_a_line_what_came_of_it(tmp_path: Path) -> None:
    data = replace(blobs(3), names=("a", "<script>alert(1)</script>", "c" * 100))
    problem = fedkin.Problem(build("linear", data.input_shape, data.num_classes), data)
    run = fedkin.train(problem, Perm(warm_up=1), rounds=3, folder=tmp_path / "r")
    for shown in (run, fedkin.open_run(tmp_path / "r")):
        last = run.metrics.iloc[-1]
        assert f"personal models {last['personal_accuracy']:.1%}" in repr(shown)
        assert f"alone {last['local_accuracy']:.1%}" in repr(shown)
        assert "3 clients, 3 rounds" in repr(shown)
        html = shown._repr_html_()
        assert "<script>" not in html
        assert "c" * 30 not in html
        png = shown.plot()._repr_png_()
        assert png[:4] == b"\x89PNG"
    assert len(run.plot().axes) == 4  # rounds, clients, who helps whom and its bar


def test_a_regression_shows_its_error() -> None:
    run = fedkin.train(least_squares(), "fedavg", rounds=2)
    value = run.metrics["personal_rmse"].iloc[-1]
    assert f"personal models {value:.4g}" in repr(run)
    assert run.plot().axes


@pytest.mark.parametrize(
    ("name", "shown"), [("short", "short"), ("abcdefghijkl", "abcde…ijkl"), ("x" * 10, "x" * 10)]
)
def test_long_names_lose_their_middle(name: str, shown: str) -> None:
    assert cut(name, 10) == shown


def test_names_with_dollars_are_drawn_as_they_are() -> None:
    data = replace(blobs(2), names=("$a_{", "$b^"))
    problem = fedkin.Problem(build("linear", data.input_shape, data.num_classes), data)
    run = fedkin.train(problem, "local", rounds=1)
    run.plot()._repr_png_()
    assert torch.isfinite(torch.tensor(run.accuracy))
