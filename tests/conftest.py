"""One core for each test process: tiny problems are many times slower when cores are shared."""

import os
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from tests.forks import Forks

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Runs the `fedkin` command in real processes."""
    server = Forks()
    yield server
    server.close()
