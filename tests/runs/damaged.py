"""Run folders that are damaged, or that somebody made up: every command answers with a sentence.

`python -m tests.runs.damaged 2000` tries so many, and prints those that did not end well.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin.runs.checkpoint import FACTS, _digest
from fedkin.tensors import sha256
from fedkin.toml import to_toml

STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2**63, 10**30, 1e308, -1e308, float("inf"), float("nan"), 0.5, "",
    "words", "nan", "../../etc", "x" * 5000, "\u202e\u0000", "<b>", "$x$", [], {}, [[1], 2],
    {"a": 1}, "float8", "__class__", "mlp:999999999", "evil.py:Net",
)  # fmt: skip
CELLS = ("", "words", "NaN", "nan", "inf", "-inf", "1e308", "-1", "1e12", "0", "True", str(10**30),
         "0.5", "\u202e", "a" * 3000, '"', "2026-01-01")  # fmt: skip
LONGEST = 60  # seconds of computing; reading a run takes less than one


# folders -----------------------------------------------------------------------------------


def make_runs(folder: Path) -> list[Path]:
    """Small runs that between them have every kind of file; the table to predict is beside them."""
    rng = np.random.default_rng(0)
    rows = 60
    table = pd.DataFrame(
        {
            "site": rng.choice(["a", "b", "c"], rows),
            "age": rng.normal(50, 10, rows).round(1),
            "kind": rng.choice(["x", "y", "z"], rows),
            "day": pd.date_range("2024-01-01", periods=rows).strftime("%Y-%m-%d"),
            "y": rng.choice(["ill", "well"], rows),
        }
    )
    table.to_csv(folder / "table.csv", index=False)
    data = ("--data", folder / "table.csv", "--client-column", "site", "--target-column", "y")
    common = ("-q", "--rounds", 4, "--eval-every", 2, "--checkpoint-every", 2, "--model", "mlp:4")
    made = {
        "perm": ("run", "perm", *data, *common),
        "ifca": ("run", "ifca", *data, *common, "--clusters", 2),
        "sizes": ("run", "submodel", *data, *common, "--rates", "[1.0,0.5,0.5]"),
        "numbers": ("run", "fedavg", "--data", "linear", "--num-clients", 3, "--samples", 8,
                    "-q", "--rounds", 2),
    }  # fmt: skip
    for name, words in made.items():
        code, said = command(*words, "--out", folder / name)
        assert code == 0, said
    compared = ("compare", "local", "fedavg", "--data", "linear", "--num-clients", 3)
    code, said = command(*compared, "--samples", 8, "--rounds", 2, "--out", folder / "compared")
    assert code == 0, said
    for name in ("local", "fedavg"):  # so that there is something to resume
        shutil.rmtree(folder / "compared" / name)
    return [folder / name for name in (*made, "compared")]


def command(*words: object) -> tuple[int, str]:
    """Run `fedkin WORDS` in this process: its exit code and what it said, or a traceback as 1."""
    from fedkin.command import cli

    out, err, before, code = io.StringIO(), io.StringIO(), sys.argv, 0
    sys.argv = ["fedkin", *map(str, words)]
    try:
        with (
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _in_time(),
            warnings.catch_warnings(action="ignore"),
        ):  # fmt: skip
            cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/fedkin/" in f.filename]
        own = "".join(traceback.format_list(frames[-4:]))
        return 1, f"{own}{type(error).__name__}: {error}"
    finally:
        sys.argv = before
    return code, err.getvalue()


class LateError(BaseException):
    """A command computes for ever."""


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise LateError(f"no answer within {LONGEST} seconds of computing")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)  # of this process, however busy the machine is
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# damage ------------------------------------------------------------------------------------


def damage(folder: Path, rng: random.Random) -> str:
    """Change one to three files of a run folder; says which, and how."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in DAMAGES)
        if not files:
            break
        # by kind first: there are many models and few configs
        kind = rng.choice(sorted({path.suffix for path in files}))
        path = rng.choice([path for path in files if path.suffix == kind])
        how = rng.choice((*DAMAGES[kind] * 3, cut_short, flip, remove, into_folder, empty))
        how(path, rng)
        done.append(f"{how.__name__} {path.relative_to(folder)}")
    return ", ".join(done)


def cut_short(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 3, 30)) if content else 0):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)


def remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def empty(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.choice((b"", b"\n", b"\0" * 40, b"{}", b"[]", b"client\n", b"round,a\n")))


def into_folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def edit_table(path: Path, rng: random.Random) -> None:
    """A column gone, another header, cells of another kind, rows lost, doubled or reordered."""
    rows = list(csv.reader(io.StringIO(path.read_text("utf-8", "replace"))))
    if not rows or not rows[0]:
        return
    what = rng.choice(("column", "header", "cell", "cells", "lose", "double", "mix", "more"))
    column, height = rng.randrange(len(rows[0])), len(rows)
    if what == "column":
        rows = [row[:column] + row[column + 1 :] for row in rows]
    elif what == "header":
        rows[0][column] = rng.choice(("", "round", "client", "words", "x" * 3000, "\u202e<b>"))
    elif what == "cell":
        row = rows[rng.randrange(height)]
        row[rng.randrange(len(row) or 1) : column + 1] = [rng.choice(CELLS)]
    elif what == "cells":
        value = rng.choice(CELLS)
        for row in rows[1:]:
            row[column : column + 1] = [value]
    elif what == "lose":
        del rows[rng.randrange(height)]
    elif what == "double":
        rows.append(rows[rng.randrange(height)])
    elif what == "mix":
        rows = [rows[0], *rng.sample(rows[1:], height - 1)]
    else:
        rows[rng.randrange(height)].extend(["1"] * rng.choice((1, 50)))
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def edit_values(value: Any, rng: random.Random) -> Any:
    """The same nested values, one of them another."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value, key=str))
        kept = {k: v for k, v in value.items() if k != key}
        return kept if rng.random() < 0.15 else {**kept, key: edit_values(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.randrange(len(value))
        kept = value[:place] + value[place + 1 :]
        return kept if rng.random() < 0.15 else [*kept, edit_values(value[place], rng)]
    return rng.choice(STRANGE)


def edit_json(path: Path, rng: random.Random) -> None:
    with contextlib.suppress(ValueError):
        value = edit_values(json.loads(path.read_bytes()), rng)
        if path.name == FACTS and isinstance(value, dict) and "own_sha256" in value:
            del value["own_sha256"]  # as somebody would who knows how it is made
            with contextlib.suppress(TypeError):
                value["own_sha256"] = _digest(value)
        path.write_text(json.dumps(value), "utf-8", "replace")


def edit_toml(path: Path, rng: random.Random) -> None:
    with contextlib.suppress(ValueError, TypeError):
        value = edit_values(tomllib.loads(path.read_text("utf-8")), rng)
        path.write_text(to_toml(value if isinstance(value, dict) else {"a": value}), "utf-8")


def edit_tensors(path: Path, rng: random.Random) -> None:
    """Another header with the same numbers, or other numbers; checkpoints with their checksum."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    with contextlib.suppress(ValueError):
        header, numbers = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
        if rng.random() < 0.7:
            for name, about in header.items():
                if name != "__metadata__" and rng.random() < 0.3:
                    about["dtype"] = rng.choice(("F32", "I32", "F64", "I64", "BF16", "F8_E4M3"))
            header = edit_values(header, rng)
            if isinstance(header, dict) and rng.random() < 0.3:
                header = {f"{k}x" if k != "__metadata__" else k: v for k, v in header.items()}
        else:
            numbers[:64] = rng.choice((b"\xff" * 64, b"\x7f" * 64, b"\0" * 64))
        text = json.dumps(header).encode("utf-8", "replace")
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + numbers)
    facts = path.parent / FACTS
    if facts.is_file():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            body = json.loads(facts.read_bytes())
            del body["own_sha256"]
            body["sha256"] = sha256(path)
            facts.write_text(json.dumps({**body, "own_sha256": _digest(body)}), "utf-8")


DAMAGES = {
    ".csv": (edit_table,),
    ".json": (edit_json,),
    ".toml": (edit_toml,),
    ".safetensors": (edit_tensors,),
}


# what is done with them ----------------------------------------------------------------------


def commands_for(
    run: Path, data: Path, out: Path, rng: random.Random, count: int
) -> list[tuple[object, ...]]:
    """Some of the commands that read a run folder."""
    one = ("--client-number", rng.randrange(3))
    every: list[tuple[object, ...]] = [
        ("report", run, "--out", out / "report.html"),
        ("who", run, *one),
        ("predict", run, data, *one),
        ("export", run, *one, "--to", out / "model.safetensors"),
        ("runs", run.parent),
        ("resume", run, "-q"),
        ("welcome", run, "--data", data, "--name", "newcomer", "--steps", 1),
        ("run", run / "config.toml", "-q", "--out", out / "again"),
    ]
    return rng.sample(every, count)


def problem_of(code: int, said: str) -> str | None:
    """What is wrong with how a command ended; None if it ended well or with a sentence."""
    if code == 0:
        return None
    if code in (2, 3) and said.startswith("fedkin: ") and said.count("\n") == 1:
        return None
    return said[-3000:] or f"exit code {code} and nothing said"


def try_one(
    runs: list[Path], place: Path, rng: random.Random, count: int = 2
) -> tuple[str, list[str], Counter[str]]:
    """Damage a copy of one of the runs and use it: the damage, what went wrong, and endings."""
    source = rng.choice(runs)
    run = place / "runs" / source.name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, run)
    (place / "out").mkdir()
    what, wrong, ends = f"{source.name}: {damage(run, rng)}", [], Counter[str]()
    data = source.parent / "table.csv"
    for words in commands_for(run, data, place / "out", rng, count):
        code, said = command(*words)
        ends["answered" if code == 0 else "refused"] += 1
        problem = problem_of(code, said)
        if problem is not None:
            wrong.append(f"{words[0]}: {problem}")
    return what, wrong, ends


def main(count: int, seed: int) -> int:
    bad, ends = 0, Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        runs = make_runs(Path(name))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(seed, seed + count):
            what, wrong, own = try_one(runs, Path(name) / "copy", random.Random(number))
            ends += own
            bad += bool(wrong)
            if number % 100 == 99:
                print(f"{number - seed + 1} tried, {bad} bad", file=sys.stderr, flush=True)
            for problem in wrong:
                print(f"--- {number}: {what}\n{problem}", flush=True)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{count} damaged folders, {bad} of them without a sentence; commands: {dict(ends)}; "
          f"peak memory grew by {grown:.0f} MB")  # fmt: skip
    return int(bad > 0)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(given[0] if given else 200, given[1] if len(given) > 1 else 0))
