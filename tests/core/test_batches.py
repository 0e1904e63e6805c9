"""What a client sees of its data, against plain indexing."""

import numpy as np
import pytest
import torch
from torch import nn

from fedkin.core import batches, rng
from fedkin.core.client import Client
from fedkin.core.problem import Problem
from tests.helpers import blobs, federation


def pair_of_gradients(client: Client) -> dict[str, torch.Tensor]:
    points = torch.stack([client.initial, 2 * client.initial]).expand(2, len(client), -1)
    batch = client.next_batch()
    together = client.grad(points, batch)
    return {
        "together": together.transpose(0, 1).flatten(1),
        "apart": torch.cat([client.grad(point, batch) for point in points], 1),
    }


@pytest.mark.parametrize("reshuffle", [False, True])
@pytest.mark.parametrize("strategy", ["stacked", "autograd"])
def test_several_models_on_one_minibatch_give_the_gradients_of_each(strategy, reshuffle):
    problem = Problem(
        nn.Linear(5, 3), blobs(clients=4), l2=0.1, batch_size=32, reshuffle=reshuffle,
        dtype=torch.float64,
    )  # fmt: skip
    fed = federation(problem, strategy=strategy)
    replies = fed.map(pair_of_gradients)
    torch.testing.assert_close(replies["together"], replies["apart"])
    assert fed.accounts.column("gradients").tolist() == [4] * 4
    batch = torch.full((4,), 32) if not reshuffle else problem.train.sizes.clamp(max=32)
    assert fed.accounts.column("samples").tolist() == (4 * batch).tolist()


@pytest.mark.parametrize("wide", [False, True])
def test_the_t_th_batch_depends_on_key_and_t_alone_however_many_are_expected(wide, monkeypatch):
    monkeypatch.setattr(batches, "HOLD_NUMBERS", 1 if wide else 100)  # one, or a few, at once
    sizes, starts = np.array([7, 3]), np.array([2, 9])
    keys = rng.key("here", np.arange(2))
    x, y = torch.randn(20, 3), torch.arange(20)

    def plainly(row: int, t: int) -> torch.Tensor:
        words = rng.bits(keys[row : row + 1], rng.positions(4 * t, 4))[0]
        share = (words >> np.uint64(32)).astype(np.float64) / 2**32
        return torch.from_numpy(starts[row] + (share * sizes[row]).astype(np.int64))

    for expected in (1, 3, 50):
        draws = batches.Draws(keys, starts, sizes, 4, x, y)
        for ts in [(0, 0), (1, 1), (2, 2), (5, 3), (3, 3), (9, 9)]:
            found = draws.at(np.array(ts), expected)
            places = torch.stack([plainly(row, t) for row, t in enumerate(ts)])
            assert torch.equal(found[0], x[places])
            assert torch.equal(found[1], y[places])
