"""Checkpoints: whole or absent, two of them, and damage is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fedkin.core.variants import Variant
from fedkin.errors import FedkinError
from fedkin.runs import checkpoint
from fedkin.runs.contender import _same_kind
from fedkin.runs.contents import Choice
from fedkin.runs.train import train
from fedkin.tensors import Chunked, open_tensors, write_tensors, write_text
from tests.helpers import least_squares

TENSORS = {
    "numbers": torch.randn(4, 3, dtype=torch.float64),
    "flags": torch.tensor([True, False]),
    "one": torch.tensor(7),
    "none": torch.empty(0, 5),
    "turned": torch.arange(6.0).view(2, 3).T,
}
FACTS = {"round": 3, "rate": 0.1, "nothing": None, "list": [1, 2.5, "a"]}


def test_everything_comes_back_to_the_bit(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 12, TENSORS, FACTS)
    found, damaged = checkpoint.latest(tmp_path)
    assert found
    assert (found.round, found.facts, damaged) == (12, FACTS, [])
    for name, stored in found.tensors().items():
        assert torch.equal(stored[:], TENSORS[name])
        assert stored[:].dtype == TENSORS[name].dtype
    assert torch.equal(found.tensors()["numbers"][1:3], TENSORS["numbers"][1:3])


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        checkpoint.save(tmp_path, number, TENSORS, FACTS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000002", "round-00000010"]


def test_a_new_checkpoint_replaces_damaged_ones_that_were_passed_over(tmp_path: Path) -> None:
    for number in (1, 2):
        checkpoint.save(tmp_path, number, TENSORS, FACTS)
    (tmp_path / "round-00000002" / "facts.json").write_text("{")
    found, damaged = checkpoint.latest(tmp_path)
    assert found
    assert found.round == 1
    assert damaged[0].startswith(f"checkpoint {tmp_path / 'round-00000002'} is damaged: facts.json")
    checkpoint.save(tmp_path, 2, TENSORS, FACTS)
    assert checkpoint.latest(tmp_path)[1] == []


@pytest.mark.parametrize("file", ["tensors.safetensors", "facts.json"])
def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path, file: str) -> None:
    checkpoint.save(tmp_path, 1, TENSORS, FACTS)
    path = tmp_path / "round-00000001" / file
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        for damaged in (bytes(flipped), whole[:place]):
            path.write_bytes(damaged)
            assert checkpoint.latest(tmp_path)[0] is None
    path.unlink()
    assert checkpoint.latest(tmp_path)[0] is None
    path.write_bytes(whole)
    assert checkpoint.latest(tmp_path)[0] is not None


def test_a_write_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    def fails() -> object:
        yield torch.zeros(2, 2)
        raise OSError(28, "No space left on device")

    checkpoint.save(tmp_path, 1, TENSORS, FACTS)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 2, {"x": Chunked((4, 2), torch.float32, fails())}, FACTS)
    assert [path.name for path in tmp_path.iterdir()] == ["round-00000001"]
    assert checkpoint.latest(tmp_path)[0] is not None


def test_files_that_hold_no_tensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for content in (b"", b"12345678", b"\xff" * 100, (10**12).to_bytes(8, "little") + b"{}"):
        path.write_bytes(content)
        with pytest.raises(FedkinError, match="is not a readable safetensors file"):
            open_tensors(path)
    with pytest.raises(FedkinError, match="there is no file"):
        open_tensors(tmp_path / "b.safetensors")
    with pytest.raises(FedkinError, match="is a folder"):
        open_tensors(tmp_path)
    write_tensors(path, {"x": torch.zeros(3)})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FedkinError, match="is not a readable safetensors file"):
        open_tensors(path)


def test_what_engines_choose_can_be_read_again() -> None:
    chosen = {**Variant(0.5, True, "zeroed").facts(), "strategy": "native:8:1x1"}
    assert Choice.model_validate(chosen).model_dump(exclude_unset=True) == chosen


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is flushed to disk and what gets its final name, in order."""
    found: list[tuple[str, str]] = []
    flush, rename = os.fsync, Path.rename

    def noted(handle: int) -> None:
        found.append(("flush", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        flush(handle)

    def renamed(path: Path, target: Path) -> Path:
        found.append(("name", target.name))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "rename", renamed)
    return found


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, flushed: list[tuple[str, str]]
) -> None:
    checkpoint.save(tmp_path / "checkpoint", 1, TENSORS, FACTS)
    named = flushed.index(("name", "round-00000001"))
    before, after = flushed[:named], flushed[named + 1 :]
    files = ("tensors.safetensors", "facts.json", ".writing-00000001")
    assert {("flush", name) for name in files} <= set(before)
    assert ("flush", "checkpoint") in after


def test_a_file_is_on_the_disk_before_it_takes_anothers_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, replace = list[object](), Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(os.fstat(handle).st_size))
    monkeypatch.setattr(Path, "replace", lambda *names: (seen.append("name"), replace(*names))[1])
    write_text(tmp_path / "file.txt", "seven..")
    assert seen == [7, "name"]
    assert (tmp_path / "file.txt").read_text() == "seven.."


def test_tables_are_on_the_disk_before_the_checkpoint_that_counts_on_them(
    tmp_path: Path, flushed: list[tuple[str, str]]
) -> None:
    train(least_squares(), "fedavg", folder=tmp_path / "run", rounds=2, eval_every=1,
          checkpoint_every=1)  # fmt: skip
    last = 0
    for number in (1, 2):
        named = flushed.index(("name", f"round-{number:08d}"))
        for table in ("metrics.csv", "clients.csv", "timing.csv"):
            assert ("flush", table) in flushed[last:named]
        last = named


@pytest.mark.parametrize(
    ("stored", "fresh", "alike"),
    [
        (3, 1, True), ("3", 1, False), (3, 1.5, True), (2.5, 1.5, True), ("x", 1.5, False),
        ([1], (2,), True), (1, (2,), False), (None, 1, True), (1, None, True), ("a", "b", True),
    ],
)  # fmt: skip
def test_a_number_of_a_checkpoint_is_of_the_kind_that_the_method_keeps(
    stored: object, fresh: object, alike: bool
) -> None:
    assert _same_kind(stored, fresh) is alike
