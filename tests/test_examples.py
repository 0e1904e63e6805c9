"""The examples are short, and each of them runs."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_something(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", path],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_a_screen_and_has_a_title(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    title, line, *_ = (ast.get_docstring(ast.parse(text)) or "\n").splitlines()
    told = "begin with a docstring: a title, a line of === below it, a blank line, some sentences"
    assert title, told
    assert line == "=" * len(title), told
