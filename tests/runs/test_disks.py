"""Disks that are full or cannot be written."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forks import Forks
from tests.run_command import TINY


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small disk of its own, or changes it."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def mount(options: str) -> Path:
        nonlocal mounted
        again = "remount," if mounted else ""
        command = ["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a tmpfs needs root")
        mounted = True
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_stops_a_run_that_can_go_on_later(
    disk: Callable[[str], Path], forks: Forks, tmp_path: Path
) -> None:
    run, whole = disk("size=200k") / "run", tmp_path / "whole"
    words = ("run", "local", "--data", "linear", "--num-clients", 3, "--model", "mlp:700", "-q")
    words += ("--rounds", 6, "--checkpoint-every", 2, "--strategy", "native:3:1x1")
    ended = forks.run(*words, "--out", run)
    assert ended.code == 2
    assert re.fullmatch(
        rf"fedkin: cannot write in {run}: No space left on device; .* fedkin resume {run}\n",
        ended.err,
    )
    disk("size=20m")
    assert forks.run("resume", run, "-q").code == 0
    assert forks.run(*words, "--out", whole).code == 0
    for name in ("metrics.csv", "clients.csv", "models/client-0001.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_a_disk_that_is_full_from_the_start(disk: Callable[[str], Path], forks: Forks) -> None:
    place = disk("size=64k")
    (place / "ballast").write_bytes(bytes(60_000))
    ended = forks.run("run", "local", *TINY, "--out", place / "run")
    assert ended.code == 2
    assert re.fullmatch(r"fedkin: cannot [^\n]*No space left on device[^\n]*\n", ended.err)
    assert [path.name for path in place.iterdir()] == ["ballast"]


def test_a_folder_that_cannot_be_written(disk: Callable[[str], Path], forks: Forks) -> None:
    run = disk("size=1m") / "run"
    assert forks.run("run", "local", *TINY, "--out", run).code == 0
    disk("ro")
    for words in (("run", "local", *TINY, "--out", run.with_name("new")), ("resume", run)):
        ended = forks.run(*words)
        assert ended.code == 2
        assert re.fullmatch(
            rf"fedkin: cannot use {run.parent}/[^\n]*: Read-only file system; choose a folder that "
            r"can be written with --out\n",
            ended.err,
        )
