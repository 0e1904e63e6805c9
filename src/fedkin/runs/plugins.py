"""Users' own code from files, `mymodels.py:Net`: loaded once, and known by its checksum.

Only the person who starts a run names files: what comes from other machines must pass
`refuse_files` first.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fedkin.errors import FedkinError, checked_size, unknown

# a comma separates several
REFERENCE = re.compile(r"(?P<path>[^,]+\.py)(?::(?P<name>[^,]*))?")
# tables of a config whose texts are never code
NOT_CODE = ("data", "files", "made_with")
LONGEST = 2**24  # bytes of a file of code


def is_file(text: Any) -> bool:
    """Whether a text refers to code in a file: `path/to/file.py:name`."""
    return isinstance(text, str) and REFERENCE.fullmatch(text) is not None


def short_name(name: str) -> str:
    """A short name that can also be a folder's: `mymethod.MyMethod` for /some/mymethod.py:MyMethod.

    Names that do not refer to files stay as they are.
    """
    if not is_file(name):
        return name
    path, wanted = _parts(name)
    return f"{path.stem}.{wanted}"


def absolute(reference: str) -> str:
    """The same reference with the whole path of its file."""
    path, wanted = _parts(reference)
    return f"{path}:{wanted}"


def load(reference: str, what: str) -> Any:
    """What a file defines under a name; `what` says in errors what it is for, as in `model`."""
    path, wanted = _parts(reference)
    module = _module(path, what)
    if not hasattr(module, wanted):
        own = [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__
        ]
        raise FedkinError(f"{path} defines no {what} of that name: {unknown('name', wanted, own)}")
    return getattr(module, wanted)


def references(values: Any, top: bool = True) -> Iterator[str]:
    """Every reference to a file among the nested values of a config.

    Only at the top do names of tables tell what is in them: clients may have any names.
    """
    if isinstance(values, str):
        yield from (part.strip() for part in values.split(",") if is_file(part.strip()))
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from () if top and key in NOT_CODE else references(value, top=False)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from references(value, top=False)


def with_files(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A config whose references are absolute, with the checksums of their files in `files`.

    A file that has another checksum than the config says is refused.
    """
    found = {k: v if k in NOT_CODE else _absolute(v) for k, v in values.items()}
    used = checksums(references(found))
    known = values.get("files") or {}
    if not isinstance(known, Mapping):
        raise FedkinError(f"{where}: files should be a table of checksums, not '{str(known)[:60]}'")
    for path, expected in known.items():
        if path in used and used[path] != expected:
            raise FedkinError(
                f"{path} has changed since {where} was written (the checksum differs): restore it, "
                "or start a new run with it"
            )
    return {**found, "files": used} if used else {k: v for k, v in found.items() if k != "files"}


def refuse_files(values: Any, why: str) -> None:
    """Raise if a config refers to code in files."""
    for reference in references(values):
        raise FedkinError(f"'{str(reference)[:100]}' is code in a file: {why}")


def refuse_brought(values: Any, folder: Path) -> None:
    """Raise if the config in a run folder refers to code that came with the folder.

    Runs write whole paths of their users' own files; a folder from elsewhere may not run code.
    """
    for reference in references(values):
        path = Path(reference.partition(".py")[0] + ".py")
        if not path.is_absolute() or path.resolve().is_relative_to(folder.resolve()):
            raise FedkinError(
                f"'{reference[:100]}' in {folder}/config.toml is code that lies in the run folder, "
                "or is not named by its whole path: such code is not run"
            )


def checksums(used: Iterator[str]) -> dict[str, str]:
    """SHA-256 of every file referred to, and of those beside it that it imports, by path."""
    found: dict[str, str] = {}
    left = [_parts(reference)[0] for reference in used]
    while left:
        path = left.pop()
        if str(path) not in found:
            text = _read(path, "code")
            found[str(path)] = hashlib.sha256(text).hexdigest()
            left += _beside(path, text)
    return dict(sorted(found.items()))


# files ---------------------------------------------------------------------------------


def _absolute(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _absolute(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_absolute(inner) for inner in value]
    if not isinstance(value, str) or ".py" not in value:
        return value
    parts = [part.strip() for part in value.split(",")]
    found = ",".join(absolute(part) if is_file(part) else part for part in parts)
    return found if any(map(is_file, parts)) else value


def _parts(reference: str) -> tuple[Path, str]:
    found = REFERENCE.fullmatch(reference)
    if found is None:
        raise FedkinError(f"'{reference}' is not of the form file.py:name")
    path, wanted = found["path"], found["name"]
    if not wanted or not wanted.isidentifier():
        raise FedkinError(f"'{reference}' does not say what to use of it: write {path}:NAME")
    return Path(path).resolve(), wanted


def _read(path: Path, what: str) -> bytes:
    try:
        checked_size(path, LONGEST)
        return path.read_bytes()
    except OSError as error:
        reason = f"there is no file {path}" if isinstance(error, FileNotFoundError) else (
            f"{path} cannot be read: {error.strerror}"
        )  # fmt: skip
        raise FedkinError(f"{reason}, from which the {what} of this run comes") from None


def _module(path: Path, what: str) -> ModuleType:
    """The module of a file; its name depends on the path and the content, so it is never stale."""
    text = _read(path, what)
    name = f"file_{path.stem}_{hashlib.sha256(bytes(path) + text).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:  # last: its neighbours must not hide installed packages
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        exec(compile(text, path, "exec"), vars(module))  # nosec B102
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _not_importable(path, error) from None
    return module


def _not_importable(path: Path, error: BaseException) -> FedkinError:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
    reason = (str(error).splitlines() or [""])[0]
    place = f" in line {line}" if line else ""
    return FedkinError(f"{path} cannot be imported: {type(error).__name__}{place}: {reason}")


def _beside(path: Path, text: bytes) -> list[Path]:
    """Files in the same folder that a file imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # told when it is imported
        return []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return [found for name in sorted(names) if (found := path.parent / f"{name}.py").is_file()]
