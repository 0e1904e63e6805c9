"""Clients in shards: the same numbers, each request once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedkin.core.federation import Federation
from fedkin.core.privacy import Privacy
from fedkin.core.problem import Problem
from fedkin.engines.ray import shards as shards_module
from fedkin.engines.ray.connection import RaySettings
from fedkin.engines.ray.engine import RayEngine
from fedkin.engines.ray.shard import versions
from fedkin.engines.ray.shards import Shards
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg
from fedkin.methods.scaffold import Scaffold
from tests.helpers import federation, personal_models, run
from tests.helpers import make_named as make
from tests.test_common_checks import every_method
from tests.zoo import zoo_problem


def sharded(shards: Shards, problem: Problem, name: str = "x", **options: object) -> Federation:
    """A federation on the shards, with nothing remembered."""
    shards.reopen.clear()
    engine = RayEngine(shards, name, "native:3:1x1", None, None, ())
    return Federation(problem, engine, **options)


@every_method
def test_shards_give_the_embedded_engines_numbers_and_counts(
    name: str, shards: Shards, small: Problem
) -> None:
    """Partial participation, three rounds, models and accounts of every method."""
    here = federation(small, "embedded", "native:3:1x1", fraction=0.6, seed=3)
    there = sharded(shards, small, fraction=0.6, seed=3)
    models: list[Tensor] = []
    for fed in (here, there):
        method = make(name)
        models.append(personal_models(method, fed, run(method, fed, 3)))
    torch.testing.assert_close(models[1], models[0], rtol=0, atol=1e-10)
    assert torch.equal(there.accounts.table, here.accounts.table)


@pytest.mark.slow  # needs processors that the shards of the other tests here hold
def test_dropout_batch_norm_lstm_and_embedding_give_the_embedded_engines_numbers(
    local_ray: None,
) -> None:
    problem = zoo_problem("together")
    shards = Shards(problem.data, RaySettings(shards=2, timeout=240), lambda sentence: None)
    shards.begin(problem)
    there = Federation(problem, RayEngine(shards, "x", "autograd:1:1x1", None, None, ()), seed=3)
    here = federation(problem, "embedded", "autograd:1:1x1", seed=3)
    method = FedAvg(lr=0.1, local_steps=3)
    found, expected = (run(method, fed, 2).x for fed in (there, here))
    shards.close_actors()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_a_request_that_arrives_twice_is_answered_alike_and_remembered_once(
    shards: Shards, small: Problem
) -> None:
    once, twice = sharded(shards, small, "once"), sharded(shards, small, "twice")
    method = Scaffold(lr=0.1, local_steps=2)
    usual = shards.ask

    def ask_twice(work, shared, steps):
        first = usual(work, shared, steps)
        again = usual(work, shared, steps)
        for k, answer in first.items():
            assert all((answer.reply[n] == again[k].reply[n]).all() for n in answer.reply)
        return again

    expected = run(method, once, 3).x
    shards.ask = ask_twice  # type: ignore[method-assign]
    try:
        found = run(method, twice, 3).x
    finally:
        del shards.ask
    assert torch.equal(found, expected)


def test_shards_clip_answers_before_they_are_added_up(shards: Shards, small: Problem) -> None:
    found = []
    for make_one in (lambda **o: federation(small, "embedded", "native:3:1x1", **o),
                     lambda **o: sharded(shards, small, "private", **o)):  # fmt: skip
        privacy = Privacy({"": 0.05}, 0.1, 3, quantile=0.5)
        fed = make_one(fraction=0.6, seed=3, sampling="poisson", privacy=privacy)
        found.append(run(make("fedavg"), fed, 3).x)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-10)


def test_a_users_own_step_travels_to_the_shards(shards: Shards, small: Problem) -> None:
    replies = sharded(shards, small).map(double_the_size)
    assert replies["twice"][:, 0].tolist() == [2 * n for n in small.train.sizes.tolist()]


def double_the_size(client):
    """A step of a module that the shards cannot import."""
    return {"twice": (2 * client.n).to(torch.float64)}


def test_memory_is_gathered_in_the_order_of_clients_and_given_back(
    shards: Shards, small: Problem
) -> None:
    fed = sharded(shards, small)
    run(Scaffold(lr=0.1, local_steps=2), fed, 2)
    memory = fed.engine.memory
    saved = {name: torch.cat(list(t.pieces)) for name, t in memory.state().items()}
    here = federation(small, "embedded", "native:3:1x1")
    run(Scaffold(lr=0.1, local_steps=2), here, 2)
    expected = here.engine.memory.state()
    torch.testing.assert_close(saved["c.values"], expected["c.values"], rtol=0, atol=1e-12)
    assert torch.equal(saved["c.known"], expected["c.known"])
    other = sharded(shards, small, "other")
    other.engine.memory.restore(saved)
    back = {name: torch.cat(list(t.pieces)) for name, t in other.engine.memory.state().items()}
    assert torch.equal(back["c.values"], saved["c.values"])


def test_what_clients_remember_can_be_forgotten(shards: Shards, small: Problem) -> None:
    fed = sharded(shards, small)
    run(Scaffold(lr=0.1, local_steps=2), fed, 2)
    memory = fed.engine.memory
    assert torch.cat(list(memory.state()["c.known"].pieces)).all()
    memory.forget()
    assert not torch.cat(list(memory.state()["c.known"].pieces)).any()


@pytest.mark.parametrize("name", ["python", "fedkin", "torch"])
def test_a_shard_with_another_version_is_refused(
    name: str, shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "versions", lambda: {**versions(), name: "0.0.1"})
    with pytest.raises(FedkinError, match=rf"shard 2 has {name} \S+, this process 0.0.1"):
        shards._check(1)


def test_the_dashboard_shows_readable_names(shards: Shards) -> None:
    import ray

    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    assert any(name.startswith("fedkin shard 1 of 2") for name in names)
    assert any(name.startswith("fedkin shard 2 of 2") for name in names)
