"""Both ends of the ranges in pyproject.toml: `python -m tests.ends lowest` as constraints for pip.

The lowest versions are those that `>=` names; the newest are pip's own choice.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def lowest() -> list[str]:
    """`name==version` for every dependency with the lowest version that is allowed."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    found = []
    for line in project["dependencies"]:
        named = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)(,.*)?", line)
        if named is None:
            raise ValueError(f"{line} in pyproject.toml has no lowest version")
        found.append(f"{named[1]}=={named[2]}")
    return found


if __name__ == "__main__":
    print("\n".join(lowest() if sys.argv[1:] == ["lowest"] else []))
