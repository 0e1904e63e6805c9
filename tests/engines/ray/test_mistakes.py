"""What a cluster lacks is said in a sentence; what a shard is promised, it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ray.exceptions import OutOfMemoryError, RayActorError

from fedkin.core.problem import Problem
from fedkin.data import DataConfig
from fedkin.data.shards import load_elsewhere
from fedkin.engines.ray import mistakes
from fedkin.engines.ray import shards as shards_module
from fedkin.engines.ray.connection import RaySettings
from fedkin.engines.ray.shards import Shards
from fedkin.errors import FedkinError


@pytest.fixture
def unconnected(small: Problem, monkeypatch: pytest.MonkeyPatch) -> Shards:
    """Two shards of a cluster with eight CPUs that nobody has started."""
    monkeypatch.setattr(shards_module, "connect", lambda settings: {"CPU": 8.0})
    found = Shards(small.data, RaySettings(shards=2, gpus=0.5), print)
    found.borders, found.actors = [0, 3, 5], [None, None]
    return found


def test_every_shard_asks_for_its_gpus_and_computes_there(
    unconnected: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no GPU here: what Ray is asked for is looked at, and where shards compute."""
    asked: list[dict[str, Any]] = []

    def remote(**options: Any) -> Callable[[type], Any]:
        asked.append(options)
        return lambda kind: type("Kind", (), {"options": lambda **named: Actor()})

    class Actor:
        remote = staticmethod(lambda cpus: None)

    monkeypatch.setattr(shards_module.ray, "remote", remote)
    unconnected._new("fedkin shard 1 of 2", 4, unconnected.settings.gpus)
    assert asked == [{"num_cpus": 4, "num_gpus": 0.5, "max_restarts": 0}]

    taken: list[str] = []

    class Held:
        class take:
            remote = staticmethod(lambda *words: taken.append(words[4]))

    unconnected.actors, unconnected._problem = [Held(), Held()], None
    monkeypatch.setattr(unconnected, "_once", lambda ref: None)
    unconnected._give(range(2))
    assert taken == ["cuda", "cuda"]


def test_data_that_all_nodes_together_cannot_hold_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mistakes.ray, "cluster_resources", lambda: {"memory": 20e9})
    config = DataConfig(name="crowd", num_clients=10_000, samples=1000, dim=1000)
    with pytest.raises(FedkinError, match=r"the data take 40\.1 GB and the cluster has 20 GB"):
        mistakes.check_room(load_elsewhere(config, 0).data)


@pytest.mark.parametrize(
    "error",
    [OutOfMemoryError("memory"), RayActorError(error_msg="The node was running low on memory")],
)
def test_a_shard_that_ran_out_of_memory_is_not_started_again_and_again(
    error: Exception, unconnected: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(ref: object, timeout: float) -> None:
        raise error

    monkeypatch.setattr(shards_module.ray, "get", get)
    with pytest.raises(FedkinError, match="ran out of memory"):
        unconnected._once(None)
    with pytest.raises(FedkinError, match="ran out of memory"):
        unconnected._answer(0, None, (), 1e9, True)
    assert not unconnected.dead


def test_an_allocation_that_fails_in_a_shard_is_said_too() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    told = mistakes.cause(type("Task", (), {"cause": caught.value})())  # type: ignore[arg-type]
    assert isinstance(told, FedkinError)
    assert "ran out of memory" in str(told)
