"""Going alone is trained once in a comparison, and nobody can tell."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fedkin.methods import Local
from fedkin.runs import comparison
from fedkin.runs.comparison import Entry, execute, plan
from fedkin.runs.training import Trainer

BASE = {
    "rounds": 6, "eval_every": 2, "checkpoint_every": 2, "strategy": "native:8:1x1",
    "data": {"name": "digits", "num_clients": 4, "validation_fraction": 0.2},
    "model": {"name": "logistic"}, "options": {"lr": 0.1},
}  # fmt: skip
TABLES = ("metrics.csv", "clients.csv")


def entries(*methods: str, **more: Any) -> list[Entry]:
    return [e for name in methods for e in plan(name, {**BASE, **more}, [0], {})]


def run(place: Path, planned: list[Entry], rounds: int = 10**6) -> None:
    """All of a comparison, or its first rounds."""
    stop, left = threading.Event(), [rounds]

    def count(label: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            stop.set()

    errors = execute(planned, place, lambda config, data: config.to_toml(), count, stop)
    assert not errors


def tables(place: Path) -> dict[str, str]:
    found = [path for name in TABLES for path in place.rglob(name)]
    return {str(path.relative_to(place)): path.read_text() for path in found}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which method each round of local-only training stood beside."""
    rounds, round_ = list[str](), Local.round
    monkeypatch.setattr(Local, "round", lambda *a: (rounds.append("alone"), round_(*a))[1])
    return rounds


def apart(place: Path, monkeypatch: pytest.MonkeyPatch, *methods: str) -> dict[str, str]:
    """The same runs, each with a baseline of its own."""
    with monkeypatch.context() as patch:
        patch.setattr(comparison.Shared, "of", lambda *_: None)
        run(place, entries(*methods))
    return tables(place)


@pytest.mark.parametrize("methods", [("local", "fedavg", "perm"), ("fedavg", "ditto", "local")])
def test_it_is_trained_once_with_the_same_results(
    methods: tuple[str, ...], tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = apart(tmp_path / "apart", monkeypatch, *methods)
    assert len(trained) == 3 * 6
    trained.clear()
    run(tmp_path / "once", entries(*methods))
    # a run of `local` itself is always made; others use it, or the first one's
    assert len(trained) == (6 if methods[0] == "local" else 2 * 6)
    assert tables(tmp_path / "once") == expected


def test_other_steps_are_other_models(tmp_path: Path, trained: list[str]) -> None:
    run(tmp_path / "a", entries("local") + entries("fedavg", options={"lr": 0.2}))
    assert len(trained) == 2 * 6


def test_a_run_that_goes_on_elsewhere_trains_them_after_all(
    tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = apart(tmp_path / "apart", monkeypatch, "local", "fedavg")
    trained.clear()
    planned = entries("local", "fedavg")
    run(tmp_path / "cut", planned, rounds=6 + 4)
    assert len(trained) == 6
    run(tmp_path / "cut", planned)
    assert len(trained) == 6 + 6
    assert tables(tmp_path / "cut") == expected


def test_no_scores_are_kept_of_very_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entries("fedavg")[0]
    problem = entry.config.make_problem(entry.config.make_data())
    assert comparison.Shared().of(entry.config, problem) is not None
    monkeypatch.setattr("fedkin.runs.alone_once.MOST", 3)
    assert comparison.Shared().of(entry.config, problem) is None
    assert Trainer(problem, entry.config.make_method(), entry.config.settings()).contenders["local"]
