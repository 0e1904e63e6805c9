"""The examples are short, and each of them runs."""

import ast
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from fedkin.core import steps
from fedkin.methods import registry

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
# these train for long or start processes that import torch again: `-m slow`, and `make docs`
SLOW = {"advise", "comparison", "different_architectures", "ray_cluster", "three_sites"}
RUN = [pytest.param(path, marks=pytest.mark.slow if path.stem in SLOW else ())
       for path in EXAMPLES]  # fmt: skip


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_something(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    # a method that an example registers is gone afterwards
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    monkeypatch.setattr(steps, "_offering", set(steps._offering))
    with plt.rc_context({"backend": "agg"}):
        runpy.run_path(str(path), run_name="__main__")
    plt.close("all")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_a_screen_and_has_a_title(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    title, line, *_ = (ast.get_docstring(ast.parse(text)) or "\n").splitlines()
    told = "begin with a docstring: a title, a line of === below it, a blank line, some sentences"
    assert title, told
    assert line == "=" * len(title), told
