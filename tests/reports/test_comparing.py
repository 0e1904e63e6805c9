"""Comparisons from Python: the same numbers as the command's, shown in a notebook."""

from __future__ import annotations

import threading
from pathlib import Path

import pandas as pd
import pytest

import fedkin
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg, Local
from fedkin.models import build
from fedkin.reports.latex import escaped
from fedkin.runs.comparison import execute, plan
from tests.helpers import blobs

KEYS = {"data": "linear", "num_clients": 4, "samples": 20, "model": "linear", "rounds": 4}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> fedkin.Comparison:
    folder = tmp_path_factory.mktemp("comparison") / "c"
    return fedkin.compare(["local", "fedavg"], folder=folder, seeds=3, sweep={"lr": [0.01, 0.1]},
                          validation_fraction=0.2, **KEYS)  # fmt: skip


def test_it_computes_what_the_command_computes(
    comparison: fedkin.Comparison, tmp_path: Path
) -> None:
    base = {"rounds": 4, "model": {"name": "linear"},
            "data": {"name": "linear", "num_clients": 4, "samples": 20,
                     "validation_fraction": 0.2}}  # fmt: skip
    entries = plan("fedavg", base, range(3), {"lr": ["0.01", "0.1"]})
    errors = execute(entries, tmp_path, lambda c, _: c.to_toml(), lambda _: None, threading.Event())
    assert not errors
    for entry in entries:
        ours = pd.read_csv(entry.folder(comparison.folder) / "metrics.csv")
        theirs = pd.read_csv(entry.folder(tmp_path) / "metrics.csv")
        pd.testing.assert_frame_equal(ours, theirs, rtol=1e-5)


def test_its_table_has_numbers_and_its_tests_too(comparison: fedkin.Comparison) -> None:
    table = comparison.table
    assert len(table) == 4
    assert table["last"].dtype == float
    assert (table["last_low"] <= table["last"]).all()
    assert comparison.tests["advantage"].dtype == float
    assert set(comparison.runs) == set(table["label"])
    assert len(comparison.runs[table["label"][0]]) == 3


def test_it_shows_itself(comparison: fedkin.Comparison) -> None:
    assert "fedavg" in repr(comparison)
    assert "<table" in comparison._repr_html_()
    for what in ("rounds", "clients", "gains"):
        assert comparison.plot(what)._repr_png_()[:4] == b"\x89PNG"
    with pytest.raises(FedkinError, match="no picture 'round'"):
        comparison.plot("round")


def test_the_latex_table_has_a_row_per_method_and_bold_for_the_best(
    comparison: fedkin.Comparison,
) -> None:
    text = comparison.to_latex()
    rows = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    assert len(rows) == 4
    columns = rows[0].count(" & ")
    assert all(row.count(" & ") == columns for row in rows)
    assert rows[0].startswith(r"\textbf{")
    assert escaped("a_b & 5 % ± {x}") == r"a\_b \& 5 \% $\pm$ \{x\}"


def test_a_report_is_written_from_a_comparison(
    comparison: fedkin.Comparison, tmp_path: Path
) -> None:
    written = fedkin.report(comparison, out=tmp_path / "page.html")
    assert "<!doctype html>" in written.path.read_text()[:20]
    numbers = pd.read_csv(tmp_path / "page_figures" / "comparisons.csv")
    assert numbers["advantage"].dtype == float
    assert "page.html" in written._repr_html_()
    with pytest.raises(FedkinError, match=r"\.html file"):
        fedkin.report(comparison, out=tmp_path / "page.pdf")


def test_problems_and_methods_of_ones_own_are_compared() -> None:
    data = blobs(4)
    problem = fedkin.Problem(build("linear", data.input_shape, data.num_classes), data)
    seen: list[fedkin.Progress] = []
    found = fedkin.compare(
        [Local(lr=0.1), FedAvg(lr=0.1), FedAvg(lr=0.01)], problem, seeds=2, rounds=3, local_steps=2,
        on_round=seen.append,
    )  # fmt: skip
    assert sorted(found.table["label"]) == ["fedavg lr=0.01", "fedavg lr=0.1", "local"]
    assert (found.table["seeds"] == 2).all()
    assert seen[-1].round == seen[-1].rounds == 18
    alone = fedkin.train(problem, FedAvg(lr=0.1, local_steps=2), rounds=3, seed=1)
    run = found.runs["fedavg lr=0.1"][1]
    assert run.accuracy == pytest.approx(alone.accuracy)
    folder = found.folder
    del found, run
    assert not folder.exists()


def test_what_is_wrong_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="in a list"):
        fedkin.compare("fedavg")
    with pytest.raises(FedkinError, match=r"unknown key 'roundz' \(did you mean 'rounds'\?\)"):
        fedkin.compare(["fedavg"], roundz=3)
    data = blobs(2)
    problem = fedkin.Problem(build("linear", data.input_shape, data.num_classes), data)
    run = fedkin.train(problem, "local", rounds=1)
    with pytest.raises(FedkinError, match="no folder"):
        fedkin.report(run)
