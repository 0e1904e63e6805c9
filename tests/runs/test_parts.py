"""Tables that grow long are read as if they had stayed one csv file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fedkin.errors import FedkinError
from fedkin.runs import parts
from fedkin.runs.folder import RunFolder
from fedkin.runs.reading import parts_of, read_table

CLIENTS = ("007", "b, c", "x")


def evaluation(number: int) -> dict[str, list]:
    count = len(CLIENTS)
    scores = [None if number % 3 else number / 7 + i for i in range(count)]
    facts = {"round": [number] * count, "client": list(CLIENTS)}
    return facts | {"loss": scores, "bytes": [9] * count}


def filled(path: Path, rounds: int) -> RunFolder:
    folder = RunFolder.create(path, "")
    for number in range(1, rounds + 1):
        folder.append("clients.csv", evaluation(number))
    return folder


@pytest.fixture
def both(tmp_path, monkeypatch) -> tuple[RunFolder, RunFolder]:
    """Twenty evaluations in one csv file, and in a csv file and parts."""
    whole = filled(tmp_path / "whole", 20)
    monkeypatch.setattr(parts, "LARGE", 200)
    return whole, filled(tmp_path / "cut", 20)


def same(one: RunFolder, other: RunFolder) -> None:
    pd.testing.assert_frame_equal(one.table("clients.csv"), other.table("clients.csv"))


def test_parts_are_read_as_one_table(both) -> None:
    whole, cut = both
    assert len(parts_of(cut.path / "clients.csv")) > 2
    assert not parts_of(whole.path / "clients.csv")
    assert (cut.path / "clients.csv").stat().st_size < 400
    same(whole, cut)
    assert set(cut.table("clients.csv")["client"]) == set(CLIENTS)


@pytest.mark.parametrize("last", [20, 19, 13, 6, 1])
def test_going_back_drops_the_same_rows(both, last: int) -> None:
    for folder in both:
        folder.cut_back(last)
    same(*both)
    for folder in both:
        for number in range(last + 1, 24):
            folder.append("clients.csv", evaluation(number))
    same(*both)


def test_going_back_twice_without_a_row_between(both) -> None:
    for last in (13, 6):
        for folder in both:
            folder.cut_back(last)
    same(*both)


def test_rows_that_a_crash_left_in_both_count_once(both) -> None:
    whole, cut = both
    path = cut.path / "clients.csv"
    full = evaluation(20) | {"round": [20] * len(CLIENTS)}
    for number in (21, 22):
        whole.append("clients.csv", evaluation(number))
        cut.append("clients.csv", full | evaluation(number))
    kept = path.read_text()
    parts.shorten(path)
    if path.read_text() == kept:  # not large enough yet
        cut.append("clients.csv", evaluation(23))
        whole.append("clients.csv", evaluation(23))
        kept = path.read_text()
        parts.shorten(path)
    path.write_text(kept)  # the part was written, and then the machine stopped
    same(whole, cut)
    last = int(whole.table("clients.csv")["round"].iloc[-1])
    for folder in both:
        folder.cut_back(last)
        folder.append("clients.csv", evaluation(last + 1))
    same(whole, cut)


def test_a_damaged_part_is_told_by_name(both) -> None:
    part = parts_of(both[1].path / "clients.csv")[0]
    part.write_bytes(b"PAR1 is not enough")
    with pytest.raises(FedkinError, match=part.name):
        read_table(both[1].path / "clients.csv")
