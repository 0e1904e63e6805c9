"""A Ray of this machine with two actors, started once for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
import torch

import fedkin.engines.ray  # noqa: F401  (tests import Ray, and this must come before)
from fedkin.core.problem import Problem
from fedkin.runs.checks import problem

if TYPE_CHECKING:
    from fedkin.engines.ray.shards import Shards

if find_spec("ray") is None:  # the extra fedkin[ray] is not installed
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def small() -> Problem:
    """Five clients of different sizes, in double precision."""
    return problem("mlp-norm:8", torch.float64)  # with norms, so that it suits all methods


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A Ray of our own, on this machine."""
    from fedkin.engines.ray.connection import RaySettings, connect

    connect(RaySettings())
    yield
    import ray

    ray.shutdown()


@pytest.fixture(scope="module")
def shards(small: Problem, local_ray: None) -> Iterator[Shards]:
    """Two actors that hold these clients' data."""
    from fedkin.engines.ray.connection import RaySettings
    from fedkin.engines.ray.shards import Shards

    found = Shards(small.data, RaySettings(shards=2, timeout=240), lambda sentence: None)
    found.begin(small)
    yield found
    found.close_actors()
