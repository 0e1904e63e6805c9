"""Both ends of the ranges in pyproject.toml: `python -m tests.ends lowest` as constraints for pip.

The lowest versions are those that `>=` names; the newest are pip's own choice. torch is the one
of constraints.txt at both ends: other builds bring gigabytes of accelerator libraries.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = ROOT / "pyproject.toml"


def torch() -> str:
    """The line of constraints.txt that names torch."""
    (line,) = re.findall(r"^torch==.+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return str(line)


def lowest() -> list[str]:
    """`name==version` for every dependency but torch, the lowest version that is allowed."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    found = []
    for line in project["dependencies"]:
        named = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)(,.*)?", line)
        if named is None:
            raise ValueError(f"{line} in pyproject.toml has no lowest version")
        if named[1] != "torch":
            found.append(f"{named[1]}=={named[2]}")
    return found


if __name__ == "__main__":
    print("\n".join([torch(), *(lowest() if sys.argv[1:] == ["lowest"] else [])]))
