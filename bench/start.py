"""How long the command takes to say something: fresh processes, in turn."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from bench.timing import Row, seconds

# what is run, and the seconds it may take; torch alone takes longer to import than the first three
COMMANDS = {
    "import fedkin": (("-c", "import fedkin"), 0.15),
    "fedkin --help": (("-m", "fedkin", "--help"), 0.15),
    "fedkin run --help": (("-m", "fedkin", "run", "--help"), None),
    "import torch": (("-c", "import torch"), None),
    "fedkin methods": (("-m", "fedkin", "methods"), None),
    "fedkin config perm": (("-m", "fedkin", "config", "perm"), None),
    "make run": (
        ("-m", "fedkin", "compare", "local", "fedavg", "perm", "--data", "rotated-digits"), 4.0,
    ),
}  # fmt: skip


def start(only: str | None = None, times: int = 5) -> Iterator[Row]:
    """Seconds from the start of a process to its end: help, lists, and all of `make run`."""
    for name, (words, target) in COMMANDS.items():
        if only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, *words]

            def once(command: list[str] = command, place: str = place) -> None:
                subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)

            once()
            took = [seconds(once) for _ in range(times)]
        yield {"command": name, "seconds": statistics.median(took), "target": target or "-"}
