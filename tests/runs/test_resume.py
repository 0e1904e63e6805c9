"""A killed run, resumed, ends as if nothing had happened: to the bit, for every method."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest

from fedkin.methods.registry import all_methods, get_method
from fedkin.runs.checks import usual
from fedkin.runs.folder import RunFolder
from fedkin.runs.train import train
from tests.forks import Forks
from tests.helpers import least_squares

KEPT = (".csv", ".json", ".toml", ".safetensors")
CLOCKS = ("timing.csv", "capacity.csv")
SMALL = (
    *("--data", "synthetic", "--num-clients", 5, "--dim", 6, "--model", "mlp:5"),
    *("--batch-size", 5, "--fraction", 0.6, "--eval-every", 2, "--checkpoint-every", 2, "-q"),
)  # fmt: skip


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
    """Small runs, with less warm-up than by default, so that six rounds meet all phases."""
    cls = get_method(name)
    small = [usual(cls) if cls.needs and word == "mlp:5" else word for word in SMALL]
    return [*small, "--warm-up", 2] if "warm_up" in {f.name for f in fields(cls)} else small


def go_on(forks: Forks, run: Path, reference: Path, **kill: object) -> int:
    """Start a copy of a run, or resume it where it has begun."""
    if (run / "config.toml").exists():
        return forks.run("resume", run, "-q", **kill).code
    return forks.run("run", reference / "config.toml", "--out", run, "-q", **kill).code


# what the common checks promise of every method without processes, with real ones that are killed
KILLED = {"fedavg", "scaffold", "perm"}
EVERY = [
    pytest.param(name, marks=() if name in KILLED else pytest.mark.slow) for name in all_methods()
]


@pytest.mark.parametrize("name", EVERY)
def test_every_method_goes_on_exactly_after_kills(name: str, forks: Forks, tmp_path: Path) -> None:
    reference, run = tmp_path / "reference", tmp_path / "killed"
    chance = random.Random(name)
    whole = forks.run("run", name, "--out", reference, "--rounds", 6, *options(name))
    assert (whole.code, whole.err) == (0, "")
    go_on(forks, run, reference, after=chance.uniform(0.2, 0.9) * whole.seconds)
    go_on(forks, run, reference, die=f"{chance.choice(['half:1', 'fsync:2', 'fsync:3'])}")
    assert go_on(forks, run, reference) == 0
    assert_same(run, reference)


def test_twenty_kills_at_random_moments_leave_no_trace(forks: Forks, tmp_path: Path) -> None:
    reference, chance = tmp_path / "reference", random.Random(20)
    whole = forks.run("run", "scaffold", "--out", reference, "--rounds", 40, *SMALL)
    assert whole.code == 0
    runs, kills = [tmp_path / "killed-0"], 0
    while kills < 20:
        moment: dict[str, object] = {"after": chance.uniform(0.0, whole.seconds / 8)}
        if chance.random() < 0.25:
            moment = {"die": f"half:{chance.randint(1, 2)}"}
        code = go_on(forks, runs[-1], reference, **moment)
        assert code in (0, -signal.SIGKILL)
        kills += code == -signal.SIGKILL
        if code == 0:  # the run was over before the kill came: disturb another one
            runs.append(tmp_path / f"killed-{len(runs)}")
    assert len(runs) <= 10  # two kills and more for a run, or it was hardly disturbed
    assert go_on(forks, runs[-1], reference) == 0
    for run in runs:
        assert_same(run, reference)


def test_the_engines_choice_is_kept_from_the_first_round_on(forks: Forks, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kill = {"when_exists": run / "metrics.csv", "signal": signal.SIGKILL}
    forks.run("run", "apfl", "--out", run, "--rounds", 1000, *SMALL, **kill)
    strategy = json.loads((run / "strategy.json").read_text())
    assert strategy["method"][0]["strategy"].startswith("native:")
    assert strategy["local"][0]["strategy"].startswith("native:")


def test_a_config_file_repeats_its_run_to_the_bit(forks: Forks, tmp_path: Path) -> None:
    first, second, forced = (tmp_path / name for name in ("first", "second", "forced"))
    assert forks.run("run", "pfedme", "--out", first, "--rounds", 3, *SMALL).code == 0
    assert forks.run("run", first / "config.toml", "--out", second, "-q").code == 0
    assert_same(second, first)
    chosen = json.loads((first / "strategy.json").read_text())["method"][0]["strategy"]
    words = ("run", first / "config.toml", "--strategy", chosen, "--out", forced, "-q")
    assert forks.run(*words).code == 0
    assert (forced / "clients.csv").read_bytes() == (first / "clients.csv").read_bytes()


def test_ctrl_c_finishes_the_round_and_tells_how_to_go_on(forks: Forks, tmp_path: Path) -> None:
    reference, run = tmp_path / "reference", tmp_path / "stopped"
    long = ("--rounds", 20, *SMALL)
    assert forks.run("run", "apfl", "--out", reference, *long).code == 0
    stop = {"when_exists": run / "metrics.csv", "signal": signal.SIGINT}
    ended = forks.run("run", reference / "config.toml", "--out", run, "-q", **stop)
    assert (ended.code, ended.err) == (130, "")
    done = len((run / "metrics.csv").read_text().splitlines()) - 1
    assert 1 <= done < 20
    assert f"stopped after round {done}; continue with: fedkin resume {run}\n" in ended.out
    assert (run / "checkpoint" / f"round-{done:08d}").is_dir()
    assert forks.run("resume", run, "-q").code == 0
    assert_same(run, reference)


def test_sigterm_is_as_polite_as_ctrl_c(forks: Forks, tmp_path: Path) -> None:
    run = tmp_path / "run"
    stop = {"when_exists": run / "metrics.csv", "signal": signal.SIGTERM}
    ended = forks.run("run", "local", "--out", run, "--rounds", 1000, *SMALL, **stop)
    assert ended.code == 128 + signal.SIGTERM
    assert f"fedkin resume {run}" in ended.out


def test_a_second_process_on_a_folder_stops_with_a_sentence(forks: Forks, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert forks.run("run", "local", "--out", run, "--rounds", 2, *SMALL).code == 0
    first = RunFolder.open(run)
    before = contents(run)
    ended = forks.run("resume", run)
    assert ended.code == 2
    assert ended.err == (
        f"fedkin: another process is working in {run}: wait for it to end, or stop it\n"
    )
    assert contents(run) == before
    first.close()
    assert forks.run("resume", run, "-q").code == 0


def damage(run: Path, how: str, number: int) -> Path:
    path = run / "checkpoint" / f"round-{number:08d}" / "tensors.safetensors"
    raw = bytearray(path.read_bytes())
    match how:
        case "cut":
            path.write_bytes(raw[: len(raw) // 2])
        case "bit flipped":
            raw[-100] ^= 1
            path.write_bytes(raw)
        case "missing":
            path.unlink()
        case "facts":
            path = path.with_name("facts.json")
            path.write_text(path.read_text().replace('"round": 6', '"round": 7'))
    return path


@pytest.mark.parametrize("how", ["cut", "bit flipped", "missing", "facts"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(
    how: str, forks: Forks, tmp_path: Path
) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    assert forks.run("run", "scaffold", "--out", reference, "--rounds", 6, *SMALL).code == 0
    shutil.copytree(reference, run)
    shutil.rmtree(run / "models")
    path = damage(run, how, 6)
    ended = forks.run("resume", run, "-q")
    assert (ended.code, ended.err) == (0, "")
    assert f"note: checkpoint {path.parent} is damaged: {path.name}" in ended.out
    assert "note: continuing after round 4\n" in ended.out
    assert "is damaged" in (run / "log.txt").read_text()
    assert_same(run, reference)


def test_with_no_sound_checkpoint_left_a_run_says_so_and_begins_again(
    forks: Forks, tmp_path: Path
) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    assert forks.run("run", "scaffold", "--out", reference, "--rounds", 6, *SMALL).code == 0
    shutil.copytree(reference, run)
    shutil.rmtree(run / "models")
    damage(run, "cut", 6)
    damage(run, "bit flipped", 4)
    ended = forks.run("resume", run, "-q")
    assert ended.code == 0
    assert "note: no checkpoint is left: starting from round 0 again\n" in ended.out
    assert_same(run, reference)


def test_training_that_diverges_says_when_and_who_and_keeps_the_last_checkpoint(
    forks: Forks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ("--data", "synthetic", "--num-clients", 5, "--model", "logistic", "--rounds", 50)
    too_fast = ("--lr", 5, "--l2", 1, "--eval-every", 1, "--checkpoint-every", 1)
    ended = forks.run("run", "fedavg", "--out", run, *words, *too_fast, "-q")
    assert ended.code == 3
    assert "Traceback" not in ended.err
    found = re.fullmatch(
        r"fedkin: training diverged (?:in|by) round (\d+): .* clients .*\(\d.*\).* the checkpoint "
        r"of round (\d+) is kept in .*\n",
        ended.err,
    )
    assert found, ended.err
    diverged, kept = map(int, found.groups())
    assert kept == diverged - 1
    assert sorted(p.name for p in (run / "checkpoint").iterdir())[-1] == f"round-{kept:08d}"
    assert len((run / "metrics.csv").read_text().splitlines()) == 1 + kept


def test_a_resumed_run_knows_all_its_rounds(tmp_path: Path) -> None:
    problem = least_squares()
    whole = train(problem, "apfl", rounds=6, eval_every=2, folder=tmp_path / "whole")
    stopper = lambda done: done.round == 4 and raise_interrupt()  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        train(problem, "apfl", rounds=6, eval_every=2, checkpoint_every=2,
              folder=tmp_path / "run", on_round=stopper)  # fmt: skip
    run = train(problem, "apfl", rounds=6, eval_every=2, checkpoint_every=2,
                folder=tmp_path / "run", resume=True)  # fmt: skip
    assert list(run.metrics["round"]) == [1, 2, 3, 4, 5, 6]
    assert list(run.timing["round"]) == [1, 2, 3, 4, 5, 6]
    pd.testing.assert_frame_equal(run.metrics, whole.metrics, check_dtype=False, rtol=1e-12)
    pd.testing.assert_frame_equal(run.clients, whole.clients, rtol=1e-12)


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def test_runs_started_from_python_are_not_resumed_by_the_command(
    forks: Forks, tmp_path: Path
) -> None:
    train(least_squares(), "local", rounds=1, folder=tmp_path / "run")
    ended = forks.run("resume", tmp_path / "run")
    assert ended.code == 2
    assert "was started from Python: continue it there with train(" in ended.err


def test_data_that_changed_since_the_run_began_are_noticed(forks: Forks, tmp_path: Path) -> None:
    table, run = tmp_path / "table.csv", tmp_path / "run"
    rows = [f"{'ab'[i % 2]},{i % 7},{(i * i) % 5 > 1}" for i in range(60)]
    table.write_text("\n".join(["site,x,y", *rows]))
    words = ("--data", table, "--client-column", "site", "--target-column", "y", "-q")
    assert forks.run("run", "local", "--rounds", 2, "--out", run, *words).code == 0
    table.write_text("\n".join(["site,x,y", *rows[:-1], "a,3,True"]))
    ended = forks.run("resume", run)
    assert ended.code == 2
    assert f"the data of {run} have changed since it began" in ended.err


def test_clients_over_the_wire_go_on_exactly_too(forks: Forks, tmp_path: Path) -> None:
    reference, run = tmp_path / "reference", tmp_path / "killed"
    words = ("--rounds", 6, "--engine", "wire", *SMALL)
    assert forks.run("run", "scaffold", "--out", reference, *words).code == 0
    assert go_on(forks, run, reference, die="half:2") == -signal.SIGKILL
    assert go_on(forks, run, reference) == 0
    assert_same(run, reference)
