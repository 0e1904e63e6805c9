"""Do the tests bite? `python -m tests.mutants 60 --seed 1`: faults planted, one at a time.

A fault is one operator, comparison, number or condition changed inside a function of methods/,
core/ or the run folder's modules; words for the user and asserts are left alone. The tests that
go through the function (`tests.reach` finds them, once) run against it, quick ones first, until
one fails. Survivors are printed: each is a rule that nothing checks, or a change that means the
same. A test that fails on the unchanged source too has killed nothing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = Path("src") / "fedkin"
RUN_FOLDER = (
    "checkpoint", "contender", "early", "folder", "inputs", "models", "reading", "records", "who",
)  # fmt: skip
REACH = ROOT / ".reach"
LONGEST = 600  # processor seconds: a fault may make a loop endless
SLOW_IMPORTS = ("matplotlib.pyplot", "pandas", "scipy.stats", "sklearn.linear_model", "torch")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A fault: the module, the line, the function's first line, the change, the whole text."""

    path: Path
    line: int
    function: int
    what: str
    before: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.what}"


# planting ------------------------------------------------------------------------------------


def modules() -> list[Path]:
    found = [*(ROOT / SOURCE / "methods").rglob("*.py"), *(ROOT / SOURCE / "core").rglob("*.py")]
    found += [ROOT / SOURCE / "runs" / f"{name}.py" for name in RUN_FOLDER]
    return sorted(path.relative_to(ROOT) for path in found if path.name != "__init__.py")


def mutants_of(path: Path, text: str) -> Iterator[Mutant]:
    """Every fault that can be planted in a module."""
    for node, function in _computing(ast.parse(text), None):
        changed = _changed(node)
        if changed is not None:
            before, after = (ast.unparse(each) for each in (node, changed))
            if before == after:  # a number so large that one more is none
                continue
            what = f"{before.splitlines()[0][:70]}  ->  {after.splitlines()[0][:70]}"
            if isinstance(node, ast.If | ast.While):  # all but the condition stays as it is
                node, after = node.test, ast.unparse(changed.test)  # type: ignore[attr-defined]
            faulty = _spliced(text, node, f"({after})")
            yield Mutant(path, node.lineno, function, what, text, faulty)


def _computing(node: ast.AST, function: int | None) -> Iterator[tuple[ast.expr | ast.stmt, int]]:
    """The nodes that compute something in a function, with the function's first line.

    Not defaults and annotations, asserts, errors that are raised, and text.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr | ast.arguments):
            continue
        if isinstance(child, ast.FunctionDef):
            own = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            for statement in child.body:
                yield from _computing(ast.Module([statement], []), own)
        elif isinstance(child, ast.AnnAssign):
            yield from _computing(ast.Module([ast.Expr(child.value)], []), function)  # type: ignore[arg-type]
        else:
            if function is not None and isinstance(child, ast.expr | ast.stmt):
                yield child, function
            yield from _computing(child, function)


def _changed(node: ast.AST) -> ast.AST | None:
    """The node with a fault in it, if it is of a kind that gets one."""
    node = copy.copy(node)
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        node.ops = [SWAPS[type(node.ops[0])](), *node.ops[1:]]  # type: ignore[list-item]
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        value = node.value
        node.value = not value if isinstance(value, bool) else value + 1  # type: ignore[operator]
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    else:
        return None
    return node


def _spliced(text: str, node: ast.expr | ast.stmt, after: str) -> str:
    """The module's text with other words for one node; all the rest stays as it is."""
    lines = text.splitlines(keepends=True)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset :].decode()
    return "".join([*lines[:first], head + after + tail, *lines[last + 1 :]])


def draw(count: int, seed: int) -> list[Mutant]:
    """Different faults, modules by their size, so that every line is as likely."""
    rng, paths, sample = random.Random(seed), modules(), dict[str, Mutant]()
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}
    while len(sample) < count:
        path = rng.choices(paths, [len(text) for text in texts.values()])[0]
        own = list(mutants_of(path, texts[path]))
        if own:
            mutant = rng.choice(own)
            sample[str(mutant)] = mutant
    return list(sample.values())


# which tests ---------------------------------------------------------------------------------


class Tests:
    """The tests that go through a function, from what `tests.reach` wrote."""

    def __init__(self, enough: float) -> None:
        self.enough = enough
        files = sorted(ROOT.glob(".reach.*"))
        self.made = min(file.stat().st_mtime for file in files)
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        self.seconds: dict[str, float] = {row["test"]: row["seconds"] for row in rows}
        self.through: dict[str, set[str]] = {}
        of_file: dict[str, list[str]] = {}
        for row in rows:
            of_file.setdefault(row["test"].split("::")[0], []).append(row["test"])
        self.seen = set(of_file)
        for row in rows:
            for function in row["called"]:
                self.through.setdefault(function, set()).add(row["test"])
            for function in row["prepared"]:  # a set-up may be shared by all tests of the file
                self.through[function].update(of_file[row["test"].split("::")[0]])

    def of(self, mutant: Mutant) -> list[str]:
        """The tests to run, those of the module first, then the quick ones, and never for long."""
        inside = mutant.path.relative_to(SOURCE)
        found = self.through.get(f"{inside}:{mutant.function}", set())
        changed = {test.split("::")[0] for test in found if self._is_new(test)}
        found = {test for test in found if test.split("::")[0] not in changed}
        own = sorted({*changed, *self._named(inside, new=bool(found))})
        left, chosen = self.enough, list[str]()
        for test in sorted(found, key=lambda test: (inside.stem not in test, self.seconds[test])):
            left -= self.seconds[test]
            if left < 0 and chosen:
                break
            if test.split("::")[0] not in own:
                chosen.append(test)
        return [*own, *chosen]

    def _is_new(self, test: str) -> bool:
        """Whether a test's file is changed, gone, or none of those that `tests.reach` saw."""
        name = test.split("::")[0]
        file = ROOT / name
        return name not in self.seen or not file.exists() or file.stat().st_mtime > self.made

    def _named(self, inside: Path, new: bool) -> set[str]:
        """Files of the same room that name the module; with `new` only what changed since."""
        room = ROOT / "tests" / inside.parts[0]
        files = [str(file.relative_to(ROOT)) for file in room.rglob("test_*.py")]
        return {
            file for file in files
            if (self._is_new(file) or not new)
            and (inside.stem in file or f".{inside.stem} import" in (ROOT / file).read_text())
        }  # fmt: skip


# running -------------------------------------------------------------------------------------


class FirstFailure:
    """A plugin that writes the name of the first test that fails to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.path.exists():
            self.path.write_text(report.nodeid or "a file that cannot be imported")


def start(place: Path, tests: list[str], words: tuple[str, ...] = ("-x",)) -> int:
    """Run tests in a fork of this process, which has imported what is slow to import."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    os.chdir(place)
    os.environ.update(PYTHONPATH=str(place / "src"), OMP_NUM_THREADS="1")
    sys.path[:0] = [str(place / "src"), str(place)]
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST))
    out = os.open(place / "out.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    code = 1
    try:
        options = ["-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=3000", "--tb=line"]
        plugins = [FirstFailure(place / "failed.txt")]
        code = int(pytest.main([*options, *words, *tests], plugins=plugins))
    finally:
        os._exit(code)


def make_copy(place: Path) -> Path:
    for part in ("src", "tests", "docs", "examples", "bench", "deploy"):
        shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("_build"))
    for file in ROOT.glob("*.*"):
        if file.is_file() and not file.name.startswith(".reach"):
            shutil.copy(file, place)
    return place


def forget(module: Path) -> None:
    """Remove compiled code, which knows its source by whole seconds only."""
    for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
        compiled.unlink()


def hunt(sample: list[Mutant], tests: Tests, folder: Path, jobs: int) -> dict[Mutant, str]:
    """Which test kills which fault; an empty name for those that survive."""
    places = [make_copy(folder / str(number)) for number in range(jobs)]
    busy: dict[int, tuple[Path, Mutant]] = {}
    found: dict[Mutant, str] = {}
    waiting = list(sample)
    while waiting or busy:
        if waiting and places:
            mutant, place = waiting.pop(0), places.pop()
            chosen = tests.of(mutant)
            if not chosen:
                found[mutant] = ""
                places.append(place)
                print(f"SURVIVED {mutant} (no test goes through it)", flush=True)
                continue
            (place / mutant.path).write_text(mutant.text, encoding="utf-8")
            forget(place / mutant.path)
            busy[start(place, chosen)] = (place, mutant)
            continue
        child, status = os.wait()
        place, mutant = busy.pop(child)
        found[mutant] = killer(place, os.waitstatus_to_exitcode(status))
        state = f"killed   {mutant} by {found[mutant]}" if found[mutant] else f"SURVIVED {mutant}"
        print(f"{len(found)} {state}", flush=True)
        (place / mutant.path).write_text(mutant.before, encoding="utf-8")
        forget(place / mutant.path)
        places.append(place)
    return found


def killer(place: Path, code: int) -> str:
    """The test that failed, or how else the tests ended; empty if they passed."""
    failed = place / "failed.txt"
    name = failed.read_text() if failed.exists() else ""
    failed.unlink(missing_ok=True)
    if code == 4:
        raise RuntimeError((place / "out.txt").read_text()[-2000:])  # no such test
    return "" if code in (0, 5) else name or f"the tests' end (code {code})"


def false_alarms(killers: set[str], folder: Path) -> set[str]:
    """Tests that fail on the unchanged source too."""
    place, found = make_copy(folder / "unchanged"), set[str]()
    left = sorted(name for name in killers if "::" in name)
    while left:
        _, status = os.waitpid(start(place, left), 0)
        name = killer(place, os.waitstatus_to_exitcode(status))
        if name not in left:
            break
        found.add(name)
        left.remove(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("count", type=int, nargs="?", default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="of tests, for one fault")
    given = parser.parse_args()
    if not list(ROOT.glob(".reach.*")):
        words = ["-m", "pytest", "-n", "2", "-p", "tests.reach", "--reach", str(REACH)]
        subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    for slow in SLOW_IMPORTS:
        importlib.import_module(slow)
    with tempfile.TemporaryDirectory() as name:
        found = hunt(draw(given.count, given.seed), Tests(given.seconds), Path(name), given.jobs)
        wrong = false_alarms(set(found.values()), Path(name))
    for mutant, test in found.items():
        if test in wrong:
            print(f"NOT KILLED {mutant}: {test} fails without it too")
    dead = sum(test != "" and test not in wrong for test in found.values())
    print(f"{dead} of {len(found)} killed ({100 * dead / len(found):.0f} %)")


if __name__ == "__main__":
    main()
