"""Comparisons: runs in lockstep equal runs alone, and survive being killed."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pandas as pd
import pytest

from fedkin.command.compare import compare
from fedkin.errors import FedkinError
from fedkin.runs.comparison import Entry, execute, load_plan, plan, save_plan
from fedkin.runs.config import make_config
from fedkin.runs.tasks import Task, batches
from fedkin.runs.training import Trainer
from tests.forks import Forks
from tests.run_command import Fedkin

BASE = {
    "rounds": 6,
    "eval_every": 2,
    "checkpoint_every": 2,
    "strategy": "native:8:1x1",
    "data": {"name": "digits", "num_clients": 4},
    "model": {"name": "logistic"},
}


def test_a_plan_has_every_method_seed_and_swept_value() -> None:
    entries = plan("fedavg", BASE, [0, 1, 2], {"lr": ["0.1", "0.2"], "batch_size": ["5", "10"]})
    assert len(entries) == 12
    assert len({entry.label for entry in entries}) == 4
    assert {entry.config.model.batch_size for entry in entries} == {5, 10}
    assert all(entry.config.seed == entry.seed for entry in entries)


def test_a_plan_can_be_read_back(tmp_path: Path) -> None:
    entries = plan("scaffold", BASE, [0, 1], {})
    save_plan(tmp_path / "c", entries)
    assert load_plan(tmp_path / "c") == entries
    with pytest.raises(FedkinError, match="already exists"):
        save_plan(tmp_path / "c", entries)


def tasks(entries: list[Entry]) -> list[Task]:
    return [e.task(Path(), e.config.make_data(), lambda config, data: "") for e in entries]


def test_only_runs_alike_are_computed_as_one() -> None:
    entries = plan("fedavg", BASE, [0, 1], {"batch_size": ["5", "10"]})
    assert [len(batch) for batch in batches(tasks(entries))] == [2, 2]


def test_runs_with_bounded_memory_are_computed_alone_and_end_alike(tmp_path: Path) -> None:
    found = []
    for memory in (None, "1KB"):
        entries = plan("apfl", BASE | {"memory": memory}, [0, 1], {})
        assert [len(batch) for batch in batches(tasks(entries))] == ([1, 1] if memory else [2])
        folder = tmp_path / str(memory)
        execute(entries, folder, lambda c, _: c.to_toml(), lambda _: None, threading.Event())
        found.append([pd.read_csv(e.folder(folder) / "clients.csv") for e in entries])
    for together, alone in zip(*found, strict=True):
        pd.testing.assert_frame_equal(together, alone, rtol=1e-5)


def test_each_run_of_a_comparison_equals_the_same_run_alone(tmp_path: Path) -> None:
    entries = plan("scaffold", BASE, [0, 1], {"lr": ["0.05", "0.2"]})
    save_plan(tmp_path / "c", entries)
    errors = execute(
        entries, tmp_path / "c", lambda c, _: c.to_toml(), lambda _: None, threading.Event()
    )
    assert errors == {}
    for entry in entries:
        config = make_config(entry.config.model_dump())
        problem = config.make_problem(config.make_data())
        alone = Trainer(problem, config.make_method(), config.settings()).run().metrics
        stacked = pd.read_csv(entry.folder(tmp_path / "c") / "metrics.csv")
        for column in ("personal_loss", "local_loss", "bytes_up", "gradients"):
            assert stacked[column].dropna().to_list() == pytest.approx(
                alone[column].dropna().to_list(), abs=1e-5
            )


def words(out: Path) -> list[str]:
    return [
        "scaffold", "local", "--seeds", "2", "--rounds", "60", "--eval_every", "20",
        "--checkpoint_every", "10", "--data", "digits", "--num_clients", "4",
        "--model", "logistic", "--strategy", "native:8:1x1", "--out", str(out),
    ]  # fmt: skip


def test_a_killed_comparison_resumes_and_ends_with_the_same_tables(
    forks: Forks, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    compare(words(whole))
    assert forks.run("compare", *words(killed), die="half:4").code == -signal.SIGKILL
    assert list(killed.glob("*/seed-*/checkpoint/round-*"))
    assert not list(killed.rglob("done"))
    assert forks.run("resume", killed).code == 0
    # runs that were killed between each other's checkpoints meet in other blocks for a while
    for path in whole.rglob("*.csv"):
        if path.name not in ("timing.csv", "table.csv"):
            ends = [pd.read_csv(p) for p in (path, killed / path.relative_to(whole))]
            kept = [title for title in ends[0].columns if not title.endswith("seconds")]
            pd.testing.assert_frame_equal(*(end[kept] for end in ends), rtol=1e-5, atol=1e-7)
    columns = ["method", "mean", "worst", "best", "better", "mb_up", "mb_down"]
    tables = [pd.read_csv(folder / "table.csv")[columns] for folder in (whole, killed)]
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (["--rounds", "3"], "name the methods"),
        (["fedavgg"], "did you mean 'fedavg'"),
        (["fedavg", "--seeds", "0"], "at least 1"),
        (["fedavg", "--seeds"], "needs a value"),
        (["fedavg", "--sweep", "lr"], "KEY=VALUE"),
        (["fedavg", "--sweep", "lrr=1,2"], "did you mean 'lr'"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(bad: list[str], sentence: str) -> None:
    with pytest.raises(FedkinError, match=sentence):
        compare(bad)


def test_a_comparison_with_rates_shows_and_keeps_every_level(
    tmp_path: Path, fedkin: Fedkin
) -> None:
    words = ("--data", "digits", "--num-clients", 4, "--rounds", 2, "--seeds", 2, "--no-baseline")
    rates = ("--rates", "1,1/4", "--sweep", "kind=static,random")
    said = fedkin("compare", "fedavg", "ditto", *words, *rates, "--out", tmp_path / "c")
    assert said.code == 0
    assert "peak MB" in said.out
    table = pd.read_csv(tmp_path / "c" / "capacity.csv")
    labels = [f"{m}-kind={kind}" for m in ("fedavg", "ditto") for kind in ("static", "random")]
    assert table["method"].tolist() == [label for label in labels for _ in range(2)]
    assert table["rate"].tolist() == [1.0, 0.25] * 4
    assert (table["clients"] == 2).all()
    own = [tmp_path / "c" / labels[0] / f"seed-{s}" / "capacity.csv" for s in (0, 1)]
    mean = sum(pd.read_csv(path)["accuracy"][0] for path in own) / 2
    assert table["accuracy"][0] == pytest.approx(mean)


def test_rates_can_be_swept(tmp_path: Path) -> None:
    entries = plan("fedavg", {}, [0], {"rates": ["1", "1/2"]})
    assert [entry.config.method for entry in entries] == ["submodel"] * 2
    assert [entry.config.options["rates"] for entry in entries] == ["1", "1/2"]
    assert entries[1].folder(tmp_path) == tmp_path / "fedavg-rates=1_2" / "seed-0"
