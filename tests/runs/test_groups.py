"""Which runs count as repeats of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.errors import FedkinError
from fedkin.runs.groups import find_runs, group, shared_settings
from tests.runs.folders import write_run


def test_runs_that_differ_in_their_seed_are_repeats(tmp_path: Path) -> None:
    for seed in (10, 2, 0):
        write_run(tmp_path / "fedavg" / f"seed-{seed}", "fedavg", seed, [[0.5]])
    groups, notes = group(find_runs([tmp_path]))
    assert [(g.label, g.seeds) for g in groups] == [("fedavg", [0, 2, 10])]
    assert notes == []


def test_groups_are_labelled_by_what_tells_them_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [[0.5]], lr=0.1, local_steps=5)
    write_run(tmp_path / "b", "fedavg", 0, [[0.5]], lr=0.2, local_steps=5)
    write_run(tmp_path / "c", "ditto", 0, [[0.5]], lr=0.3)
    groups, _ = group(find_runs([tmp_path]))
    assert {g.label for g in groups} == {"fedavg lr=0.1", "fedavg lr=0.2", "ditto"}
    assert shared_settings(groups)["data.name"] == "made-up"
    assert "options.lr" not in shared_settings(groups)


def test_the_same_seed_twice_is_counted_once_and_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [[0.5]])
    write_run(tmp_path / "b", "fedavg", 0, [[0.5]])
    groups, notes = group(find_runs([tmp_path]))
    assert [g.seeds for g in groups] == [[0]]
    assert "repeats" in notes[0]


def test_unfinished_runs_are_left_out_of_a_group_and_said(tmp_path: Path) -> None:
    for seed, done in enumerate((2, 1, 0)):
        write_run(tmp_path / str(seed), "fedavg", seed, [[0.5], [0.6]], done=done)
    groups, notes = group(find_runs([tmp_path]))
    assert [(g.seeds, g.unfinished) for g in groups] == [([0], 2)]
    assert "2 of 3 runs are unfinished and left out" in notes[0]


def test_a_run_that_is_not_finished_is_shown_when_there_is_no_other(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [[0.5], [0.6]], done=1)
    groups, notes = group(find_runs([tmp_path / "a"]))
    assert groups[0].seeds == [0]
    assert "shown as far as they got" in notes[0]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="there is no run with results"):
        find_runs([tmp_path])
    with pytest.raises(FedkinError, match="there is no folder"):
        find_runs([tmp_path / "nowhere"])
