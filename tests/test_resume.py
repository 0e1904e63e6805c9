"""A killed run, resumed, ends as if nothing had happened: to the bit, for every method."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from fedkin.registry import get_method, methods
from tests.forks import Forks

KEPT = (".csv", ".json", ".toml", ".safetensors")
CLOCKS = ("timing.csv",)
SMALL = (
    *("--data", "synthetic", "--num-clients", 5, "--dim", 6, "--model", "mlp:5"),
    *("--batch-size", 5, "--fraction", 0.6, "--eval-every", 2, "--checkpoint-every", 2, "-q"),
)  # fmt: skip


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    server = Forks()
    yield server
    server.close()


def contents(run: Path) -> dict[str, bytes]:
    """Everything a run leaves behind that does not depend on the clock."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.suffix in KEPT and path.name not in CLOCKS
    }


def assert_same(run: Path, expected: Path) -> None:
    found, wanted = contents(run), contents(expected)
    assert set(found) == set(wanted)
    assert [name for name in wanted if found[name] != wanted[name]] == []


def options(name: str) -> list[object]:
    """Less warm-up than a method has by default, so that all its phases are met in six rounds."""
    known = {f.name for f in fields(get_method(name))}
    return ["--warm-up", 2] if "warm_up" in known else []


def go_on(forks: Forks, run: Path, reference: Path, **kill: object) -> int:
    """Start a copy of a run, or resume it where it has begun."""
    if (run / "config.toml").exists():
        return forks.run("resume", run, "-q", **kill).code
    return forks.run("run", reference / "config.toml", "--out", run, "-q", **kill).code


@pytest.mark.parametrize("name", list(methods()))
def test_every_method_goes_on_exactly_after_kills(
    name: str, forks: Forks, tmp_path: Path
) -> None:
    reference, run = tmp_path / "reference", tmp_path / "killed"
    chance = random.Random(name)
    whole = forks.run("run", name, "--out", reference, "--rounds", 6, *SMALL, *options(name))
    assert (whole.code, whole.err) == (0, "")
    go_on(forks, run, reference, after=chance.uniform(0.2, 0.9) * whole.seconds)
    go_on(forks, run, reference, die=f"{chance.choice(['half:1', 'fsync:2', 'fsync:3'])}")
    assert go_on(forks, run, reference) == 0
    assert_same(run, reference)


def test_twenty_kills_at_random_moments_leave_no_trace(forks: Forks, tmp_path: Path) -> None:
    reference, run = tmp_path / "reference", tmp_path / "killed"
    chance, kills = random.Random(20), 0
    whole = forks.run("run", "scaffold", "--out", reference, "--rounds", 40, *SMALL)
    assert whole.code == 0
    for number in range(20):
        moment: dict[str, object] = {"after": chance.uniform(0.0, 0.25)}
        if number % 4 == 3:
            moment = {"die": f"half:{chance.randint(1, 2)}"}
        kills += go_on(forks, run, reference, **moment) == -signal.SIGKILL
    assert kills >= 15  # some of the last may have found nothing left to do
    assert go_on(forks, run, reference) == 0
    assert_same(run, reference)
