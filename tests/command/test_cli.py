"""What the commands do when all is well."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command

from fedkin.command import cli
from fedkin.methods.registry import all_methods, get_method
from fedkin.runs.checks import usual
from tests.run_command import TINY, Fedkin


@pytest.mark.parametrize("name", list(all_methods()))
def test_the_template_of_every_method_is_a_config_that_runs(
    name: str, fedkin: Fedkin, tmp_path: Path
) -> None:
    said = fedkin("config", name)
    assert (said.code, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= 98
    path = tmp_path / "config.toml"
    path.write_text(said.out)
    small = ("--rounds", 1, "--data", "digits", "--num-clients", 3)
    small += ("--model", usual(get_method(name)))
    ended = fedkin("run", path, *small, "--strategy", "stacked", "--out", tmp_path / "run", "-q")
    assert (ended.code, ended.err) == (0, "")


def test_help_shows_every_word_of_its_text(
    fedkin: Fedkin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for name, command in get_command(cli.app).commands.items():  # type: ignore[attr-defined]
        said = fedkin(name, "--help")  # words in square brackets are markup, and vanish
        assert set(command.help.split()) <= set(said.out.split()), name


def test_every_alias_of_other_libraries_is_understood(fedkin: Fedkin, tmp_path: Path) -> None:
    words = [word for word in TINY if word not in ("--rounds", "2")]
    for number, alias in enumerate(("--global-rounds", "--num_rounds", "--rounds")):
        out = tmp_path / str(number)
        assert fedkin("run", "local", *words, alias, 3, "--join-ratio", 0.5, "--out", out).code == 0
        text = (out / "config.toml").read_text()
        assert "rounds = 3\n" in text
        assert "fraction = 0.5\n" in text


def test_runs_lists_results_whole_at_80_columns_and_survives_broken_folders(
    fedkin: Fedkin, tmp_path: Path
) -> None:
    long = tmp_path / "runs" / ("a-rather-long-name-of-a-run-folder-" * 2 + "[bold]")
    assert fedkin("run", "fedavg-local", *TINY, "--out", long).code == 0
    for name, text in {"broken": "method = ", "odd": "data = 3\n", "empty": ""}.items():
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "config.toml").write_text(text)
    (tmp_path / "runs" / "odd" / "metrics.csv").write_bytes(b"\xff\x00,\n")
    said = fedkin("runs", tmp_path / "runs", "--csv", tmp_path / "runs.csv")
    assert (said.code, said.err) == (0, "")
    rows = [line for line in said.out.splitlines() if not line.startswith("note: ")]
    assert max(map(len, rows)) <= 80
    assert "\u2026" not in said.out
    cells = "".join(line.split("\u2502")[1].strip() for line in rows if line.startswith("\u2502"))
    assert str(long) in cells
    assert "broken/config.toml is not valid TOML" in said.out
    listed = pd.read_csv(tmp_path / "runs.csv").set_index("run")
    assert listed.loc[str(long), "done"] == listed.loc[str(long), "rounds"] == 2
    assert listed["problem"].notna().sum() >= 2


def test_what_many_runs_would_note_is_noted_once(fedkin: Fedkin, tmp_path: Path) -> None:
    many = ("compare", "pfedme", "pfedkm", *TINY[:-1], "--seeds", 2, "--lr", 1.5)
    for name in ("first", "again"):  # each command anew
        said = fedkin(*many, "--out", tmp_path / name)
        notes = re.findall(r"note: lr\*lam = 1.5 is above 1", said.out)
        assert len(notes) == 2  # for each method, whose name is in it
    logs = [path.read_text() for path in tmp_path.rglob("log.txt")]
    assert sum("lr*lam = 1.5 is above 1" in text for text in logs) == 8


def test_method_names_are_never_cut_off(fedkin: Fedkin) -> None:
    said = fedkin("methods")
    assert max(map(len, said.out.splitlines())) <= 80
    assert all(name in said.out for name in all_methods())
    assert "\u2026" not in said.out


def test_partition_describes_and_writes_what_it_deals(fedkin: Fedkin, tmp_path: Path) -> None:
    plot, csv = tmp_path / "split.png", tmp_path / "split.csv"
    words = ("--alpha", 0.1, "--num-clients", 5, "--plot", plot, "--csv", csv, "--describe")
    said = fedkin("partition", "digits", *words)
    assert (said.code, said.err) == (0, "")
    assert plot.stat().st_size > 1000
    assert len(pd.read_csv(csv)) == 5


def test_config_toml_is_complete_and_tells_what_made_it(fedkin: Fedkin, tmp_path: Path) -> None:
    rows = {"site": ["a", "b"] * 10, "x": np.arange(20.0), "y": ["well", "ill"] * 10}
    pd.DataFrame(rows).to_csv("table.csv", index=False)
    words = ("--data", "table.csv", "--client-column", "site", "--target-column", "y", "-q")
    assert fedkin("run", "local", "--rounds", 1, *words, "--out", tmp_path / "run").code == 0
    text = (tmp_path / "run" / "config.toml").read_text()
    assert f"path = {json.dumps(str(Path('table.csv').resolve()))}" in text
    for key in ("test_fraction", "batch_size", "lr", "drop", "torch", "data_sha256"):
        assert re.search(rf"^{key} = ", text, re.MULTILINE)


def test_an_existing_run_is_never_overwritten(fedkin: Fedkin, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert fedkin("run", "local", *TINY, "--out", out).code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    said = fedkin("run", "local", *TINY, "--out", out)
    assert said.code == 2
    assert said.err.startswith(f"fedkin: {out} already exists: choose another --out, or continue")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    out.with_name("file").write_text("mine")
    assert fedkin("run", "local", *TINY, "--out", out.with_name("file")).code == 2
    assert out.with_name("file").read_text() == "mine"
