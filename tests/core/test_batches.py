"""What a client sees of its data, against plain indexing."""

import pytest
import torch
from torch import nn

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
