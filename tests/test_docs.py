"""What is written about the project is true."""

import re
import runpy
from pathlib import Path

from fedkin.methods.registry import get_method

ROOT = Path(__file__).parent.parent


def test_the_page_of_methods_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate.py"))["methods_page"]()
    written = (ROOT / "docs" / "methods.md").read_text()
    assert written == page, "run: python docs/generate.py"


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


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
