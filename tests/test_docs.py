"""What is written about the project is true."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import FunctionType, ModuleType
from typing import get_type_hints

import pytest

import fedkin
import fedkin.data
import fedkin.methods
import fedkin.models
import fedkin.reports
from fedkin.core import steps
from fedkin.methods import registry
from fedkin.methods.registry import all_methods, get_method
from fedkin.methods.shared import objectives
from fedkin.version import __version__

ROOT = Path(__file__).parent.parent
# what is written about every method, beside what its class says
SECTIONS = (
    "Rule", "Paper", "When to use it", "When not to use it", "What it records",
    "What travels and what stays", "Differences from the paper",
)  # fmt: skip


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


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("[sg]*/*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = {page: PYTHON.findall(page.read_text()) for page in PAGES}


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCKS[p]], ids=lambda page: page.stem)
def test_the_python_on_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks of a page, one after the other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    monkeypatch.setattr(steps, "_offering", set(steps._offering))
    monkeypatch.setattr(objectives, "OBJECTIVES", dict(objectives.OBJECTIVES))
    module = ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in BLOCKS[page]:
        exec(compile(block, str(page), "exec"), vars(module))


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Sphinx checks those between the site's own pages."""
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("name", all_methods())
def test_every_method_has_a_note_with_all_sections(name: str) -> None:
    text = (ROOT / "docs" / "methods" / "notes" / f"{name}.md").read_text()
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    told = {head: body.strip() for head, body in zip(parts[::2], parts[1::2], strict=True)}
    for section in SECTIONS:
        assert told.get(section), f"write what {name}'s page says under '{section}'"
    assert not set(told) - {*SECTIONS, "Symbols"}
    symbols = re.findall(r"^(\w+):", told.get("Symbols", ""), flags=re.MULTILINE)
    assert set(symbols) <= {field.name for field in fields(all_methods()[name])}


def test_every_setting_of_every_method_is_explained() -> None:
    silent = {
        f"{name}.{field.name}"
        for name, cls in all_methods().items()
        for field in fields(cls)
        if cls.__module__.startswith("fedkin.")
        if "Doc(" not in str(get_type_hints(cls, include_extras=True)[field.name])
    }
    assert not silent, "add Doc(...) to the annotation"


PUBLIC = {f"{place.__name__}.{name}": getattr(place, name)
          for place in (fedkin, fedkin.methods, fedkin.data, fedkin.models, fedkin.reports)
          for name in place.__all__}  # fmt: skip


def test_no_public_name_is_undocumented() -> None:
    """Neither in the code nor in the reference."""
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    silent = []
    for name, thing in PUBLIC.items():
        if not (isinstance(thing, type) or inspect.isfunction(thing)):
            continue
        if not inspect.getdoc(thing):
            silent.append(name)
        if thing.__module__.startswith("fedkin.methods"):
            assert "automodule:: fedkin.methods" in pages
            continue
        if not re.search(rf"auto\w+:: fedkin\.(\w+\.)*{thing.__name__}$", pages, re.MULTILINE):
            silent.append(f"{name} (docs/reference)")
        silent += [f"{name}.{member}" for member in undocumented_members(thing)]
    assert not silent


def undocumented_members(thing: object) -> list[str]:
    """Public methods and properties of a class that say nothing, nor do those they override."""
    if not isinstance(thing, type):
        return []
    own = {name: value for name, value in vars(thing).items() if not name.startswith("_")}
    members = (property, FunctionType, classmethod, staticmethod)
    return [name for name, value in own.items()
            if isinstance(value, members) and not inspect.getdoc(getattr(thing, name))]  # fmt: skip
