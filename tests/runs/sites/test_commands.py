"""The commands' own sentences."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedkin.command.cli import main
from fedkin.errors import FedkinError
from fedkin.runs.sites.plan import read_serve_config
from fedkin.runs.sites.serving import ServeOptions
from tests.runs.sites.world import write_config, write_data


def fedkin(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and output of a command run in this process."""
    before, sys.argv = sys.argv, ["fedkin", *map(str, words)]
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.argv = before
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out + printed.err


def test_certs_says_what_it_made_and_makes_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ("certs", tmp_path / "c", "--host", "localhost", "--site", "a")
    code, text = fedkin(capsys, *words)
    assert code == 0
    assert "key of 'a'" in text
    assert "nothing new to make" in fedkin(capsys, "certs", tmp_path / "c", "--site", "a")[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["serve"], "give a config.toml to start a run, or --resume RUN"),
        (["serve", "{config}", "--host", "0.0.0.0"], "make certificates with `fedkin certs`"),
        (["serve", "{config}", "--certs", "{tmp}"], "there is no file"),
        (["serve", "{config}", "--wait", "2"], "--wait must be above 0 and at most 1"),
        (["serve", "{config}", "--clients", "0"], "0 is not in the range 1<=x"),
        (["serve", "--resume", "{tmp}"], "is not a run folder"),
        (["join", "--server", "far.example:1", "--data", "{data}", "--name", "a"], "--certs"),
        (["join", "--server", "127.0.0.1:1", "--data", "{data}", "--name", "a/b"], "site's name"),
        (["join", "--server", "127.0.0.1:1", "--data", "{data}", "--name", "a\n"], "site's name"),
        (["join", "--server", "nonsense", "--data", "{data}", "--name", "a"], "write HOST:PORT"),
        (
            ["join", "--server", "127.0.0.1:1", "--data", "no.csv", "--name", "a"],
            "there is no file",
        ),
    ],
)
def test_mistakes_are_answered_in_a_sentence_and_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: list[str], sentence: str,
):  # fmt: skip
    config, data = write_config(tmp_path, "fedavg", 1), write_data(tmp_path, ("a",))["a"]
    filled = [word.format(config=config, data=data, tmp=tmp_path) for word in words]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, text = fedkin(capsys, *filled)
    assert code == 2
    assert sentence in text
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize(
    ("table", "line", "sentence"),
    [
        ("", 'metric = "mine.py:within"', "sites know the built-in metrics only"),
        ("[data]", 'group_column = "person"', "group_column = 'person' is for tables in one place"),
        ("[data]", 'time_column = "day"', "every site splits its own rows by test_fraction"),
        ("[data]", 'test = "folds:5"', "test = 'folds:5' is for tables in one place"),
        ("[model]", 'class_weights = "balanced"', "give the weights themselves"),
    ],
)
def test_what_sites_cannot_do_is_told_before_anybody_joins(
    tmp_path: Path, table: str, line: str, sentence: str
):
    config = tmp_path / "config.toml"
    config.write_text(f'method = "fedavg"\n{table}\n{line}\n')
    with pytest.raises(FedkinError, match=sentence):
        read_serve_config(config)


def test_the_command_that_continues_a_run_is_whole():
    options = ServeOptions("0.0.0.0", 8123, Path("my certs"))
    assert options.resume == "fedkin serve --host 0.0.0.0 --port 8123 --certs 'my certs' --resume"
    assert ServeOptions().resume == "fedkin serve --resume"


def test_a_strange_key_of_the_sites_table_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = write_config(tmp_path, "fedavg", 1)
    config.write_text(config.read_text().replace("classes = 3", "clases = 3"))
    code, text = fedkin(capsys, "serve", config)
    assert code == 2
    assert "unknown key 'clases' (did you mean 'classes'?)" in text


def test_a_prepared_run_tells_flowers_command_and_is_not_resumed_as_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    code, text = fedkin(capsys, "serve", write_config(tmp_path, "fedavg", 1), "--prepare",
                        "--out", run)  # fmt: skip
    assert code == 0
    assert f"flwr run {run / 'app'} SUPERLINK" in text
    code, text = fedkin(capsys, "resume", run)
    assert code == 2
    assert f"fedkin serve --resume {run}" in text


def test_a_served_runs_config_repeats_it_by_serve_and_not_by_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    first, again = tmp_path / "runs" / "first", tmp_path / "again"
    config = write_config(tmp_path, "fedavg", 1)
    fedkin(capsys, "serve", config, "--prepare", "--out", first)
    code, text = fedkin(capsys, "run", first / "config.toml")
    assert code == 2
    assert "run it with `fedkin serve" in text
    assert fedkin(capsys, "serve", first / "config.toml", "--prepare", "--out", again)[0] == 0
    assert (again / "config.toml").read_text() == (first / "config.toml").read_text()
    assert read_serve_config(first / "config.toml")[1] == read_serve_config(config)[1]
    assert "sites" in fedkin(capsys, "runs", tmp_path / "runs")[1]
