"""Which functions each test goes through: a plugin, `pytest -p tests.reach --reach FILE`.

`tests.mutants` asks it which tests could notice a fault. Seconds are of the processor, so that
they say the same on a busy machine. What child processes call is not seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

SOURCE = str(Path(__file__).parent.parent / "src" / "fedkin") + os.sep


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reach", help="write the functions that each test goes through to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--reach"):
        config.pluginmanager.register(Reach(config))


class Reach:
    """Notes every function of the source that is called, test by test."""

    def __init__(self, config: pytest.Config) -> None:
        name = getattr(config, "workerinput", {}).get("workerid", "all")
        self.path = Path(f"{config.getoption('--reach')}.{name}")
        self.called: set[CodeType] = set()
        self.prepared: list[str] = []

    def see(self, frame: FrameType, event: str, arg: object) -> None:
        self.called.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        begun = spent()
        self.called.clear()
        threading.settrace(self.see)
        sys.settrace(self.see)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            test = {"test": item.nodeid, "seconds": round(spent() - begun, 3),
                    "prepared": self.prepared, "called": self.functions()}  # fmt: skip
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(test) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        try:
            return (yield)
        finally:
            self.prepared = self.functions()

    def functions(self) -> list[str]:
        """What was called since the test began, as path:line."""
        own = [code for code in self.called.copy() if code.co_filename.startswith(SOURCE)]
        return sorted(
            f"{code.co_filename.removeprefix(SOURCE)}:{code.co_firstlineno}" for code in own
        )


def spent() -> float:
    """Processor seconds of this process, and of its children that ended."""
    own = os.times()
    return time.process_time() + own.children_user + own.children_system
