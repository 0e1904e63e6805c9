"""Do the tests bite? `python -m tests.mutants 40`: faults planted in the source, one at a time.

A fault is one operator, comparison, constant or condition changed inside a function of methods/,
core/ or the run folder's modules. It is killed if the tests of its module fail. Survivors are
printed: each is a rule that nothing checks, or a change that means the same.
"""

from __future__ import annotations

import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = Path("src") / "fedkin"
RUN_FOLDER = (
    "checkpoint", "contender", "early", "folder", "inputs", "models", "reading", "records", "who",
)  # fmt: skip
# tests of other modules that go through these
ALSO = {
    "core": ("tests/core/test_federation.py", "tests/methods/test_first_five.py",
             "tests/engines/test_embedded.py"),
    "methods": ("tests/methods/test_first_five.py",),
    "runs": ("tests/runs/test_training.py", "tests/runs/test_damaged.py"),
}  # fmt: skip
LONGEST = 900  # seconds: a fault may make a loop endless
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A fault: the module, the line, what was there and what is, and the whole text."""

    path: Path
    line: int
    what: str
    text: str


def modules() -> list[Path]:
    found = [*(ROOT / SOURCE / "methods").rglob("*.py"), *(ROOT / SOURCE / "core").rglob("*.py")]
    found += [ROOT / SOURCE / "runs" / f"{name}.py" for name in RUN_FOLDER]
    return sorted(path.relative_to(ROOT) for path in found if path.name != "__init__.py")


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every fault that can be planted in a module."""
    text = (ROOT / path).read_text(encoding="utf-8")
    tree = ast.parse(text)
    for number, node in enumerate(ast.walk(tree)):
        if not _inside_function(tree, node):
            continue
        for part in _changes(node):
            changed = copy.deepcopy(tree)
            own = next(n for i, n in enumerate(ast.walk(changed)) if i == number)
            before = ast.unparse(own)
            _apply(own, part)
            after = ast.unparse(own)
            if after != before:
                what = f"{before[:70]}  ->  {after[:70]}"
                yield Mutant(path, node.lineno, what, ast.unparse(changed))  # type: ignore[attr-defined]


def _inside_function(tree: ast.Module, node: ast.AST) -> bool:
    """Whether a node computes something: not a default, an annotation or a word to the user."""
    line = getattr(node, "lineno", None)
    if line is None:
        return False
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef):
            body = outer.body[0].lineno, outer.end_lineno or 0
            if body[0] <= line <= body[1]:
                return not _said(tree, node)
    return False


def _said(tree: ast.Module, node: ast.AST) -> bool:
    """Whether a node is part of an error that is raised."""
    return any(
        isinstance(outer, ast.Raise) and outer.lineno <= node.lineno <= (outer.end_lineno or 0)  # type: ignore[attr-defined]
        for outer in ast.walk(tree)
    )


def _changes(node: ast.AST) -> list[str]:
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        return ["op"]
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        return ["ops"]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        return ["value"]
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return ["test"]
    return []


def _apply(node: ast.AST, part: str) -> None:
    if part == "op":
        node.op = SWAPS[type(node.op)]()  # type: ignore[attr-defined]
    elif part == "ops":
        node.ops[0] = SWAPS[type(node.ops[0])]()  # type: ignore[attr-defined]
    elif part == "test":
        node.test = ast.UnaryOp(ast.Not(), node.test)  # type: ignore[attr-defined]
    else:
        value = node.value  # type: ignore[attr-defined]
        node.value = not value if isinstance(value, bool) else value + 1  # type: ignore[attr-defined]


def tests_of(path: Path) -> list[str]:
    """The tests of a module: its own, those that use it by name, and those of its room."""
    inside = path.relative_to(SOURCE)
    own = ROOT / "tests" / inside.with_name(f"test_{inside.name}")
    found = [str(own.relative_to(ROOT))] if own.exists() else []
    name, tree = inside.stem, ast.parse((ROOT / path).read_text(encoding="utf-8"))
    classes = [f"{node.name}(" for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for other in sorted((ROOT / "tests" / inside.parts[0]).rglob("test_*.py")):
        text = other.read_text(encoding="utf-8")
        camel = name.replace("_", "")
        named = f".{name} import" in text or f"import {name}" in text or camel in other.stem
        if named or any(cls in text for cls in classes):
            found.append(str(other.relative_to(ROOT)))
    if inside.parts[0] == "methods" and inside.parts[1] != "shared":
        found.append("tests/test_common_checks.py")
    return list(dict.fromkeys([*found, *ALSO[inside.parts[0]]]))


def killed(mutant: Mutant, copy_of: Path) -> bool:
    """Whether the tests of its module notice a fault."""
    place = copy_of / mutant.path
    before = place.read_text(encoding="utf-8")
    place.write_text(mutant.text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(copy_of / "src"), "OMP_NUM_THREADS": "1",
                   "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    words = ["-m", "pytest", "-q", "-x", "-n", "0", "--tb=no", "-p", "no:cacheprovider"]
    tests = tests_of(mutant.path)
    name = mutant.path.stem.replace("_", "-")
    if "tests/test_common_checks.py" in tests:  # the checks of this method alone
        tests.remove("tests/test_common_checks.py")
        tests.append("tests/test_common_checks.py")
        words += ["-k", f"not common_checks or {name}"]
    try:
        ended = subprocess.run(
            [sys.executable, *words, *tests],
            cwd=copy_of, env=environment, capture_output=True, timeout=LONGEST, check=False,
        )  # fmt: skip
        return ended.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        place.write_text(before, encoding="utf-8")


def main(count: int, seed: int) -> None:
    rng = random.Random(seed)
    paths, sample = modules(), list[Mutant]()
    while len(sample) < count:  # modules by their size, so that every line is as likely
        weights = [(ROOT / path).stat().st_size for path in paths]
        own = list(mutants_of(rng.choices(paths, weights)[0]))
        if own:
            sample.append(rng.choice(own))
    dead = 0
    with tempfile.TemporaryDirectory() as folder:
        for part in ("src", "tests", "docs", "examples"):
            shutil.copytree(
                ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("_build")
            )
        shutil.copy(ROOT / "pyproject.toml", folder)
        for number, mutant in enumerate(sample, 1):
            found = killed(mutant, Path(folder))
            dead += found
            state = "killed" if found else "SURVIVED"
            print(f"{number} {state} {mutant.path}:{mutant.line} {mutant.what}", flush=True)
    print(f"{dead} of {len(sample)} killed ({100 * dead / len(sample):.0f} %)")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(given[0] if given else 40, given[1] if len(given) > 1 else 0)
