"""Shards that take equally long."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from fedkin.engines.ray.borders import borders, costs, measured_speeds
from fedkin.errors import FedkinError


def test_shards_of_equal_speed_get_equal_work_from_clients_of_very_different_sizes() -> None:
    sizes = torch.from_numpy(np.random.default_rng(0).lognormal(4, 2, 500).astype(np.int64) + 1)
    found = borders(costs(sizes), [1.0] * 4)
    assert found[0] == 0
    assert found[-1] == 500
    work = [float(costs(sizes)[lo:hi].sum()) for lo, hi in pairwise(found)]
    assert max(work) - min(work) <= 2 * float(costs(sizes).max())


def test_a_shard_twice_as_fast_gets_twice_the_clients() -> None:
    assert borders(torch.ones(300, dtype=torch.float64), [2.0, 1.0]) == [0, 200, 300]


def test_every_shard_has_a_client_and_more_shards_than_clients_are_refused() -> None:
    assert borders(torch.tensor([1000.0, 1.0, 1.0]).double(), [1.0] * 3) == [0, 1, 2, 3]
    with pytest.raises(FedkinError, match="4 shards are more than the 3 clients"):
        borders(torch.ones(3).double(), [1.0] * 4)


def test_borders_move_only_where_times_differ() -> None:
    cost = torch.ones(100).double()
    assert measured_speeds(cost, [0, 50, 100], [1.0, 1.05]) is None
    speeds = measured_speeds(cost, [0, 50, 100], [1.0, 3.0])
    assert speeds is not None
    assert borders(cost, speeds) == [0, 75, 100]
