"""Methods compared in processes of their own: the same results, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from fedkin.runs.comparison import Entry
from fedkin.runs.config import make_config
from fedkin.runs.tasks import DONE
from fedkin.runs.workers import shares
from tests.forks import Forks

SMALL = ("--seeds", "2", "--num-clients", "5", "--data", "digits", "--eval-every", "5")


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedkin", "compare", *words]
    return subprocess.Popen(
        [*command, *SMALL, "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def results(folder: Path) -> dict[str, bytes]:
    """Tables and models; in checkpoints, clients alone stand once for all methods of a process."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in ("clients.csv", "metrics.csv", "*.safetensors")
        for path in sorted(folder.rglob(name))
        if "checkpoint" not in path.parts
    }


def children(parent: int) -> set[int]:
    """Processes that a process has started."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == parent:
            found.add(int(path.parent.name))
    return found


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def begun(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until some run has written rounds."""
    while not list(folder.glob("*/seed-*/metrics.csv")):
        assert process.poll() is None
        time.sleep(0.05)


def test_in_processes_of_their_own_methods_end_alike(forks: Forks, tmp_path: Path) -> None:
    words = ("local", "scaffold", "--rounds", "5", "--strategy", "native:5:1x1", *SMALL)
    for folder, more in (("one", ()), ("two", ("--jobs", "2"))):
        ended = forks.run("compare", *words, *more, "--out", tmp_path / folder)
        assert (ended.code, ended.err) == (0, "")
        assert "scaffold" in ended.out
    assert results(tmp_path / "two") == results(tmp_path / "one") != {}


@pytest.mark.slow
def test_runs_of_one_method_are_dealt_to_processes_and_end_alike(tmp_path: Path) -> None:
    words = ("fedavg", "--rounds", "5", "--sweep", "lr=0.1,0.2", "--strategy", "native:5:1x1")
    for folder, more in (("one", ()), ("three", ("--jobs", "3"))):
        process = start(tmp_path / folder, *words, *more)
        _, err = process.communicate()
        assert (process.returncode, err) == (0, "")
    tables = sorted((tmp_path / "one").glob("*/seed-*/metrics.csv"))
    assert len(tables) == 4
    for path in tables:  # in other company the last digits may differ
        other = tmp_path / "three" / path.relative_to(tmp_path / "one")
        pd.testing.assert_frame_equal(pd.read_csv(path), pd.read_csv(other), rtol=1e-4)


def test_there_are_no_more_shares_than_runs_and_none_without_need() -> None:
    def entries(*counts: int) -> list[Entry]:
        configs = [make_config({"method": method}) for method in ("local", "fedavg", "ditto")]
        return [Entry(c.method, seed, c) for c, n in zip(configs, counts, strict=False)
                for seed in range(n)]  # fmt: skip

    def sizes(found: dict[str, list[Entry]]) -> dict[str, int]:
        return {name: len(share) for name, share in found.items()}

    assert sizes(shares(entries(4, 4, 4), 2)) == {"local": 4, "fedavg": 4, "ditto": 4}
    assert sizes(shares(entries(3), 2)) == {"local, part 1 of 2": 2, "local, part 2 of 2": 1}
    assert sizes(shares(entries(1), 4)) == {"local": 1}
    assert shares([], 2) == {}


@pytest.mark.slow
def test_a_method_that_diverges_is_told_and_the_others_end(tmp_path: Path) -> None:
    words = ("fedavg", "local", "--rounds", "3", "--lr", "1e30", "--jobs", "2")
    process = start(tmp_path / "c", *words)
    out, err = process.communicate()
    assert process.returncode == 3
    assert err == ""
    assert "training diverged" in " ".join(out.split())


def test_ctrl_c_stops_workers_politely_and_the_rest_is_resumed(
    forks: Forks, tmp_path: Path
) -> None:
    words = ("fedavg", "local", "--rounds", "100000", "--jobs", "2", *SMALL)
    stop = {"when_exists": tmp_path / "c" / "fedavg" / "seed-0" / "metrics.csv"}
    stop["signal"] = signal.SIGINT  # to the master alone
    ended = forks.run("compare", *words, "--out", tmp_path / "c", **stop)
    assert ended.code == 130
    assert f"fedkin resume {tmp_path / 'c'}" in ended.out.replace("\n", "")
    assert list((tmp_path / "c").glob("*/seed-*/checkpoint/round-*"))
    assert not list((tmp_path / "c").rglob(DONE))


@pytest.mark.parametrize("whom", ["master", pytest.param("worker", marks=pytest.mark.slow)])
def test_no_process_outlives_one_that_is_killed(tmp_path: Path, whom: str) -> None:
    process = start(tmp_path / "c", "fedavg", "--rounds", "100000", "--jobs", "2")
    begun(tmp_path / "c", process)
    workers = children(process.pid)
    assert len(workers) == 2  # one for each seed
    if whom == "master":
        process.kill()
    else:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
    out, _ = process.communicate()
    if whom == "worker":
        assert process.returncode == 2
        told = "the process with the runs of fedavg, part 1 of 2 ended early (code -9)"
        assert told in " ".join(out.split())
    while any(map(alive, workers)):  # for ever only if one outlives it: then the test is ended
        time.sleep(0.1)
