"""One core for each test process: tiny problems are many times slower when cores are shared."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from tests.forks import Forks
from tests.run_command import Fedkin, Said

torch.set_num_threads(1)

# files and folders of few tests that take long
LONG = ("test_examples", "test_docs", "test_common_checks", "tests/engines", "sites", "browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, so that no worker ends with it while the other has nothing."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Runs the `fedkin` command in real processes."""
    server = Forks()
    yield server
    server.close()


@pytest.fixture(scope="module", autouse=True)
def _own_methods() -> Iterator[None]:
    """Methods that a test module registers are unknown to the next one in the same process."""
    from fedkin.methods import registry

    before = dict(registry._METHODS)
    yield
    registry._METHODS.clear()
    registry._METHODS.update(before)


@pytest.fixture
def fedkin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Fedkin:
    """The command in this process, in an empty folder."""
    from fedkin.command import cli

    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("FEDKIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["fedkin", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        found = capsys.readouterr()
        code = end.value.code
        return Said(code if isinstance(code, int) else 0, found.out, found.err)

    return run
