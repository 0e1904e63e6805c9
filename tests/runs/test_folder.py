"""The run folder's tables, lock and rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.errors import FedkinError
from fedkin.runs.folder import RunFolder, next_folder

NAMES = ["plain", "with, comma", "with\nnewline", 'with "quotes"', "NA", "007", "é"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", "config")


def fill(folder: RunFolder, *rounds: int) -> None:
    for number in rounds:
        folder.append("metrics.csv", {"round": [number], "loss": [number / 3]})
        table = {"round": [number] * 7, "client": NAMES, "loss": [number / 7] * 7}
        folder.append("clients.csv", table)


def test_tables_come_back_as_they_were_written(folder: RunFolder) -> None:
    fill(folder, 1, 2)
    found = folder.table("clients.csv")
    assert list(found["client"]) == NAMES * 2
    assert list(folder.table("metrics.csv")["loss"]) == [1 / 3, 2 / 3]
    assert folder.table("none.csv").empty


def test_columns_that_come_later_are_empty_before(folder: RunFolder) -> None:
    folder.append("metrics.csv", {"round": [1], "a": [1.5]})
    folder.append("metrics.csv", {"round": [2], "b": [2.5], "a": [None]})
    folder.append("metrics.csv", {"round": [3]})
    text = (folder.path / "metrics.csv").read_text()
    assert text == "round,a,b\n1,1.5,\n2,,2.5\n3,,\n"


def test_rounds_after_a_checkpoint_are_cut_off(folder: RunFolder) -> None:
    fill(folder, 1, 2)
    before = {path: path.read_bytes() for path in folder.path.glob("*.csv")}
    fill(folder, 3, 4)
    folder.cut_back(2)
    assert {path: path.read_bytes() for path in folder.path.glob("*.csv")} == before
    fill(folder, 3, 4)
    assert len(folder.table("clients.csv")) == 4 * len(NAMES)
    folder.cut_back(0)
    assert list(folder.path.glob("*.csv")) == []


def test_a_row_cut_short_anywhere_is_dropped(folder: RunFolder) -> None:
    fill(folder, 1)
    path = folder.path / "clients.csv"
    before = path.read_bytes()
    fill(folder, 2)
    whole = path.read_bytes()
    for end in range(len(before), len(whole)):
        path.write_bytes(whole[:end])
        folder.cut_back(2)
        kept = path.read_bytes()
        assert whole.startswith(kept)
        assert kept.endswith(b"\n")
        assert len(kept) >= len(before)


def test_tables_of_results_are_left_alone(folder: RunFolder) -> None:
    (folder.path / "mixing.csv").write_text("client,0,1\na,0.5,0.5\n")
    (folder.path / "empty.csv").write_text("")
    folder.cut_back(0)
    assert (folder.path / "mixing.csv").read_text() == "client,0,1\na,0.5,0.5\n"


def test_one_process_at_a_time(folder: RunFolder) -> None:
    with pytest.raises(FedkinError, match="another process is working in"):
        RunFolder.open(folder.path)
    folder.close()
    RunFolder.open(folder.path).close()


def test_nothing_is_overwritten(folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="already exists: choose another --out"):
        RunFolder.create(folder.path, "other")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".hidden").write_text("precious")
    with pytest.raises(FedkinError, match="already exists"):
        RunFolder.create(tmp_path / "mine", "config")
    assert next_folder(tmp_path, "run").name == "run-001"


def test_what_a_process_killed_at_once_leaves_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    RunFolder.create(tmp_path / "run", "config")


def test_a_damaged_strategy_is_named(folder: RunFolder) -> None:
    assert folder.strategy() == {}
    folder.keep_strategy({"threads": 2})
    assert folder.strategy() == {"threads": 2}
    (folder.path / "strategy.json").write_text("{")
    with pytest.raises(FedkinError, match=r"is damaged: .*; remove the file"):
        folder.strategy()
