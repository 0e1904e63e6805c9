"""Whole runs from files on Ray: the tables of the embedded engine."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedkin.command.compare import compare
from fedkin.command.runs import run
from fedkin.engines.ray.shard import versions
from fedkin.runs.comparison import plan, to_rows
from fedkin.runs.options import parse
from fedkin.runs.spread import run_share
from tests.engines.ray.test_two_hosts import wait_for

COMMON = ("--rounds", "6", "--eval-every", "1", "--lr", "0.5", "--strategy", "native:3:1x1")
RAY = ("--engine", "ray", "--shards", "2")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    client, x = rng.integers(0, 6, 600), rng.normal(size=(600, 4))
    y = x @ rng.normal(size=4) + 0.5 * client * x[:, 0] > 0
    frame = pd.DataFrame(x, columns=list("abcd")).assign(client=client, target=y.astype(int))
    frame.to_parquet(tmp_path / "table.parquet", row_group_size=100)
    return tmp_path / "table.parquet"


def equal(found: Path, expected: Path) -> None:
    for name in ("metrics.csv", "clients.csv"):
        pd.testing.assert_frame_equal(
            pd.read_csv(found / name), pd.read_csv(expected / name), rtol=1e-4, atol=1e-6
        )


def test_a_node_tells_trackers_and_sends_their_files(table: Path) -> None:
    words = ["--data", str(table), *COMMON, "--test", "folds:2"]
    rows = to_rows(plan("fedavg", parse("fedavg", words), [0], {}))
    files, errors = run_share(rows, versions(), ["tensorboard"])
    assert errors == {}
    assert "fedavg/seed-0/metrics.csv" in files
    folds = [name for name in files if "/tensorboard/events" in name]
    assert len(folds) == 2


@pytest.mark.slow
def test_a_run_with_patience_goes_back_to_its_best_round(
    table: Path, tmp_path: Path, local_ray: None
) -> None:
    words = ["--data", str(table), *COMMON, "--validation-fraction", "0.2", "--patience", "2"]
    run("scaffold", words, tmp_path / "here", True)
    run("scaffold", [*words, *RAY], tmp_path / "there", True)
    equal(tmp_path / "there", tmp_path / "here")
    here, there = (tmp_path / name / "early.json" for name in ("here", "there"))
    assert there.read_text() == here.read_text()


@pytest.mark.slow
def test_folds_are_trained_one_after_the_other_on_the_shards(
    table: Path, tmp_path: Path, local_ray: None
) -> None:
    words = ["--data", str(table), *COMMON, "--test", "folds:2"]
    run("scaffold", words, tmp_path / "here", True)
    run("scaffold", [*words, *RAY], tmp_path / "there", True)
    equal(tmp_path / "there", tmp_path / "here")


@pytest.mark.slow
def test_a_comparison_on_a_cluster_gives_the_same_tables(
    table: Path, tmp_path: Path, local_ray: None
) -> None:
    words = ["local", "fedavg", "--seeds", "2", "--data", str(table), *COMMON]
    compare([*words, "--out", str(tmp_path / "here")])
    track = ["--engine", "ray", "--track", "tensorboard"]
    compare([*words, *track, "--out", str(tmp_path / "there")])
    for name in ("local", "fedavg"):
        own = f"{name}/seed-1"
        equal(tmp_path / "there" / own, tmp_path / "here" / own)
        assert list((tmp_path / "there" / own / "tensorboard").glob("events*"))


def marked(mark: str) -> dict[int, str]:
    """Processes in whose environment the mark is, with their names."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found[int(path.name)] = (path / "comm").read_text().strip()
        except OSError:  # it has ended, or it is another user's
            continue
    return found


@pytest.mark.slow
def test_no_process_of_ray_outlives_a_driver_that_is_killed(table: Path, tmp_path: Path) -> None:
    mark, out = f"FEDKIN_TEST_MARK={secrets.token_hex(8)}", tmp_path / "run"
    words = ["run", "fedavg", "--data", str(table), "--rounds", "100000", "--out", str(out)]
    driver = subprocess.Popen(
        [sys.executable, "-m", "fedkin", *words, *RAY, "-q"],
        env={**os.environ, mark.partition("=")[0]: mark.partition("=")[2]},
    )
    try:
        wait_for(lambda: (out / "metrics.csv").exists())
        names = marked(mark).values()
        assert "raylet" in names
        assert sum("fedkin shard" in name or "Shard" in name for name in names) == 2, names
        driver.kill()
        driver.wait()
        wait_for(lambda: not marked(mark), 60)
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        driver.wait()
