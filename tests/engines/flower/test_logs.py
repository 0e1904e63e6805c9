"""Log files: levels, plain text, a bounded size."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.engines.flower.logs import LogFile, Voice, check_level, debugger, plain, warner
from fedkin.errors import FedkinError


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("\x1b[92mINFO \x1b[0m:      SuperNode ID: 7\n", "INFO :      SuperNode ID: 7"),
        ("\x1b]0;title\x07gone\x1b[2J", "gone"),
        ("\x1b]0;title\x1b\\gone\x08\r", "gone"),
        ("Grüße\t1", "Grüße\t1"),
    ],
)
def test_what_terminals_act_on_does_not_reach_files(line: str, text: str):
    assert plain(line) == text


@pytest.mark.parametrize(
    ("least", "kept"),
    [("debug", "dDiwWe"), ("info", "iwWe"), ("warning", "wWe"), ("error", "e")],
)
def test_a_file_takes_lines_from_its_level_on(tmp_path: Path, least: str, kept: str):
    log = LogFile(tmp_path / "x.log", least)
    log.write("d", "debug")
    log.pass_on("\x1b[94mDEBUG\x1b[0m: D")
    log.write("i")
    log.write("w", "warning")
    log.pass_on("\x1b[93mWARN \x1b[0m: W")
    log.write("e", "error")
    log.close()
    lines = (tmp_path / "x.log").read_text().splitlines()
    assert "".join(line[-1] for line in lines) == kept
    levels = {"d": "DEBUG", "D": "DEBUG", "i": "INFO", "w": "WARNING", "W": "WARNING", "e": "ERROR"}
    assert [line.split()[2] for line in lines] == [levels[letter] for letter in kept]


def test_files_do_not_grow_for_ever(tmp_path: Path):
    log = LogFile(tmp_path / "x.log", most=1000, kept=2)
    for i in range(200):
        log.write(f"line {i}")
    log.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"x.log", "x.log.1", "x.log.2"}
    assert max(sizes.values()) <= 1000
    assert (tmp_path / "x.log").read_text().endswith("line 199\n")


def test_what_is_said_is_kept_with_its_level(tmp_path: Path):
    said: list[str] = []
    voice = Voice(said.append, LogFile(tmp_path / "x.log", "debug"))
    voice("hello")
    warner(voice)("\x1b[31mbad")
    debugger(voice)("request 1")
    voice.file.close()
    assert said == ["hello", "\x1b[31mbad"]
    lines = [line.split(" ", 2)[2] for line in (tmp_path / "x.log").read_text().splitlines()]
    assert lines == ["INFO hello", "WARNING bad", "DEBUG request 1"]
    warner(said.append)("as it is")
    debugger(said.append)("nothing")
    assert said[2:] == ["as it is"]


def test_an_unknown_level_is_told():
    with pytest.raises(FedkinError, match="choose from debug, info, warning, error"):
        check_level("loud")
