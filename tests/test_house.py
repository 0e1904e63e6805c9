"""The rooms of the house: what each module may import."""

import ast
import re
from pathlib import Path

import pytest

import fedkin

SOURCE = Path(__file__).parent.parent / "src" / "fedkin"
# from the ground up: a room imports from its own floor's room and from the floors below
FLOORS = (
    {"errors", "version"},
    {"tensors", "toml"},
    {"data", "models"},
    {"core"},
    {"engines", "methods"},
    {"runs"},
    {"reports"},
    {"papers"},
    {"command"},
    {"", "__main__"},
)
ROOMS = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imports_of(module: str) -> set[str]:
    """The modules that a module imports anywhere, also for types only and inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in names if name.removeprefix("fedkin.") in MODULES}
            found |= modules | ({node.module} if len(modules) < len(names) else set())
    own = {"" if name == "fedkin" else name.removeprefix("fedkin.")
           for name in found if name.partition(".")[0] == "fedkin"}  # fmt: skip
    return own - {module}


def room(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down_only(module: str) -> None:
    here = room(module)
    wrong = sorted(
        name for name in imports_of(module)
        if room(name) != here and ROOMS[room(name)] >= ROOMS[here]
    )  # fmt: skip
    assert not wrong, f"{module} imports {wrong}, which are not below it"


def test_no_module_is_imported_by_what_it_imports() -> None:
    graph = {module: imports_of(module) for module in MODULES}
    while free := [name for name, uses in graph.items() if not uses]:
        for name in free:
            del graph[name]
        for uses in graph.values():
            uses.difference_update(free)
    assert not graph, f"import cycles among {sorted(graph)}"


def test_a_newcomer_sees_few_things() -> None:
    folders = [path for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert len(folders) <= 9
    assert len(list(SOURCE.glob("*.py"))) <= 6


def test_contributors_read_the_same_order() -> None:
    """The table in CONTRIBUTING.md, whose lowest row is the ground floor."""
    text = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| \d+ \| (.+?) \|", text, flags=re.MULTILINE)
    told = [set(re.findall(r"`(\w+)", row)) for row in reversed(rows)]
    assert told == [set(floor) for floor in FLOORS if "" not in floor]


def test_the_package_of_methods_is_not_hidden_by_a_function():
    import fedkin.methods.pfedkm as module

    assert module.PFedKM is fedkin.all_methods()["pfedkm"]
    assert fedkin.methods.__path__
