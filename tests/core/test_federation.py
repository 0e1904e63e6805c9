"""The one door: rows in order, exact accounts, faults as data."""

from __future__ import annotations

import re
import time

import pytest
import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.faults import Faults
from fedkin.core.problem import Problem
from fedkin.core.steps import find_step
from fedkin.errors import DivergedError, FedkinError
from fedkin.models import build
from tests.helpers import blobs, federation, quadratic


def double(client: Client, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    return {"a": 2 * a + 0 * client.n, "b": b + 1}


def count_up(client: Client) -> dict[str, Tensor]:
    k = client.recall("k", torch.zeros(1, 1, dtype=torch.float64)) + 1
    client.keep(k=k)
    return {"k": k}


def draw(client: Client) -> dict[str, Tensor]:
    return {"u": client.uniform("test", 3)}


def explode(client: Client) -> dict[str, Tensor]:
    client.keep(v=torch.full((len(client), 1), torch.nan))
    return {}


def one_gradient(client: Client, v: Tensor) -> dict[str, Tensor]:
    return {"g": client.grad(v)}


def small(**options: object):
    return federation(quadratic([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]), **options)


def test_replies_come_in_the_order_asked() -> None:
    fed = small(strategy="native:2:1x1")
    at = torch.tensor([2, 0, 3])
    replies = fed.map(double, at=at, shared={"a": torch.tensor([5.0])}, each={"b": at.double()})
    assert replies["b"][:, 0].tolist() == [3, 1, 4]
    assert replies["a"][:, 0].tolist() == [10, 10, 10]
    assert replies.arrived.all()


def test_memory_belongs_to_one_client_and_lasts() -> None:
    fed = small()
    fed.map(count_up, at=torch.tensor([0, 1]))
    fed.map(count_up, at=torch.tensor([1, 3]))
    assert fed.map(count_up)["k"][:, 0].tolist() == [2, 3, 1, 2]


def test_a_look_changes_and_counts_nothing() -> None:
    fed = small()
    fed.look(fed.request(count_up))
    assert fed.accounts.table.sum() == 0
    assert fed.map(count_up)["k"][:, 0].tolist() == [1, 1, 1, 1]


def test_random_numbers_depend_on_seed_round_call_and_client_only() -> None:
    fed, again = small(seed=5), small(seed=5, strategy="native:1:2x1")
    for each in (fed, again):
        each.begin_round(3)
    first, second = fed.map(draw)["u"], fed.map(draw)["u"]
    assert torch.equal(first, again.map(draw)["u"])
    assert len(set(torch.cat([first, second]).flatten().tolist())) == 24
    fed.begin_round(4)
    assert not torch.equal(fed.map(draw)["u"], first)


def test_bytes_gradients_and_samples_are_counted_per_client() -> None:
    fed = small()
    fed.map(one_gradient, at=torch.tensor([1, 2]), shared={"v": torch.zeros(1).double()})
    assert fed.accounts.column("bytes_down").tolist() == [0, 8, 8, 0]
    assert fed.accounts.column("bytes_up").tolist() == [0, 8, 8, 0]
    assert fed.accounts.column("gradients").tolist() == [0, 1, 1, 0]
    assert fed.accounts.column("samples").tolist() == [0, 1, 1, 0]


def test_the_mean_is_that_of_the_rows_weighted_where_asked() -> None:
    fed = small(strategy="native:3:1x1")
    v, weights = torch.ones(1).double(), torch.tensor([1.0, 0.0, 2.0, 5.0])
    rows = fed.map(one_gradient, shared={"v": v})
    plain = fed.mean(one_gradient, shared={"v": v})["g"]
    weighted = fed.mean(one_gradient, shared={"v": v}, weights=weights)["g"]
    torch.testing.assert_close(plain, rows["g"].mean(0))
    torch.testing.assert_close(weighted, (weights[:, None].double() * rows["g"]).sum(0) / 8)
    torch.testing.assert_close(weighted, rows.mean("g", weights))


def test_lost_and_broken_answers_are_rows_marked_missing() -> None:
    fed = small(faults=Faults(drop=0.4, nan=0.4), seed=1)
    missing = 0
    for number in range(20):
        fed.begin_round(number)
        replies = fed.map(count_up)
        missing += int((~replies.arrived).sum())
        assert torch.isfinite(replies["k"]).all()
        assert (replies["k"][~replies.arrived] == 0).all()
    assert 0.4 < missing / 80 < 0.9


def test_dropped_requests_leave_no_trace_and_broken_answers_advance_memory() -> None:
    fed = small(faults=Faults(drop=1.0))
    assert not fed.map(count_up).arrived.any()
    assert fed.accounts.table.sum() == 0
    fed.faults = Faults(nan=1.0)
    assert not fed.map(count_up).arrived.any()
    fed.faults = Faults()
    assert fed.map(count_up)["k"][:, 0].tolist() == [2, 2, 2, 2]


def test_a_slow_client_takes_its_time_and_past_the_timeout_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    fed = small(faults=Faults(slow=1.0, delay=0.2))
    assert fed.map(count_up).arrived.all()
    fed.faults = Faults(slow=1.0, delay=5.0, timeout=0.05)
    assert not fed.map(count_up).arrived.any()
    assert waits == [0.2, 0.05]


def test_work_that_is_not_finite_is_not_remembered_and_all_of_it_is_divergence() -> None:
    fed = small()
    with pytest.raises(DivergedError, match=r"round 0.*all 4 clients"):
        fed.map(explode)
    assert "v" not in fed.engine.memory.tables


@pytest.mark.parametrize(("clients", "shown"), [(5, "0, 1, 2, 3, 4"), (6, "0, 1, 2, 3, 4, ...")])
def test_of_those_that_diverged_five_are_named(clients: int, shown: str) -> None:
    fed = federation(quadratic([1.0] * clients, [1.0] * clients))
    with pytest.raises(DivergedError, match=re.escape(f"({shown})")):
        fed.map(explode)


def test_a_step_must_be_a_plain_function() -> None:
    with pytest.raises(TypeError, match="plain function"):
        small().map(lambda client: {})


def test_rows_must_fit_the_clients_asked() -> None:
    with pytest.raises(ValueError, match="'b' has 2 rows for 4 clients"):
        small().map(double, shared={"a": torch.ones(1)}, each={"b": torch.ones(2)})


def test_only_steps_of_registered_methods_can_be_called_by_name() -> None:
    assert find_step("fedkin.methods.fedavg:local_sgd").__name__ == "local_sgd"
    for name in ("os:system", "fedkin.methods.fedavg:FedAvg", "fedkin.methods.fedavg:nothing"):
        with pytest.raises(FedkinError):
            find_step(name)


def test_sampling_takes_the_asked_fraction_afresh_each_round() -> None:
    fed = federation(Problem(build("logistic", (5,), 3), blobs(clients=10)), fraction=0.3)
    chosen = set()
    for number in range(8):
        fed.begin_round(number)
        at = fed.sample()
        assert len(at) == 3
        chosen.add(tuple(at.tolist()))
        assert torch.equal(at, fed.sample())
    assert len(chosen) > 4


def test_single_precision_strategies_agree_after_a_round() -> None:
    from fedkin.methods import FedAvg
    from tests.helpers import run

    problem = Problem(build("cnn:4,8,16", (1, 8, 8), 3, 1), blobs(dimension=64, shape=(1, 8, 8)))
    results = [
        run(FedAvg(lr=0.05), federation(problem, strategy=s), 1).x
        for s in ("native:1:2x1", "native:4:1x2", "vmap:3:1x1", "autograd:1:2x1", "auto")
    ]
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=1e-4)


def test_a_fraction_of_clients_is_rounded_to_the_nearest_number() -> None:
    problem = Problem(build("logistic", (5,), 3), blobs(clients=10))
    shares = {0.01: 1, 0.14: 1, 0.16: 2, 0.29: 3, 0.38: 4, 0.96: 10, 1.0: 10}
    for fraction, clients in shares.items():
        assert len(federation(problem, fraction=fraction).sample()) == clients, fraction
