"""What is written about the project is true."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedkin.methods.registry import get_method
from fedkin.version import __version__

ROOT = Path(__file__).parent.parent


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """`make docs`, but for the examples, which tests/test_examples.py runs."""
    pytest.importorskip("sphinx_gallery", reason="needs fedkin[docs]")
    written = shutil.ignore_patterns("_build", "examples", "__pycache__")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=written)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", "html"]
    environment = {**os.environ, "FEDKIN_RUN_EXAMPLES": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html" / "methods" / "perm.html").exists()


def test_the_version_is_the_same_everywhere() -> None:
    for name in ("pyproject.toml", "CITATION.cff"):
        (told,) = re.findall(r"^version[ =:]+\"?([\d.]+)", (ROOT / name).read_text(), re.MULTILINE)
        assert told == __version__


def test_the_readme_names_methods_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    named = re.findall(r"fedkin (?:run|config) ([a-z0-9-]+)", text)
    assert named
    for name in named:
        get_method(name)


def test_the_readmes_python_runs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    example = next(block for block in blocks if "fedkin.train" in block)
    exec(compile(example.replace("rounds=50", "rounds=2"), "README.md", "exec"), {})


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Sphinx checks those between the site's own pages."""
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
