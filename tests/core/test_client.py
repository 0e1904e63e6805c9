"""A client's steps against plain arithmetic on autograd's gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkin.core.client import Client
from fedkin.core.problem import Problem
from tests.helpers import blobs, federation


def pulled(
    client: Client, start: Tensor, towards: Tensor, minus: Tensor, pull: Any, times: Any
) -> dict[str, Tensor]:
    batch = client.next_batch()
    models = {"towards": towards, "pull": pull, "minus": minus, "times": times}
    moved = client.descend_(client.copy(start), 0.3, batch, **models)
    into = client.copy(minus)
    elsewhere = client.descend_(start, 0.3, batch, into=into, towards=towards, pull=pull)
    loss = torch.enable_grad()(
        lambda row, x, y: nn.functional.cross_entropy(
            x @ row[:15].view(3, 5).t() + row[15:], y.long()
        )
    )
    slopes = [torch.func.grad(loss)(*one) for one in zip(start, batch.x, batch.y, strict=True)]
    return {"moved": moved, "elsewhere": elsewhere, "slope": torch.stack(slopes)}


@pytest.mark.parametrize("pull", [0.0, 0.2, 1.0, "column"])
@pytest.mark.parametrize("strategy", ["stacked", "autograd"])
def test_a_step_pulled_towards_others_is_the_rule_written_out(strategy: str, pull: Any) -> None:
    torch.manual_seed(0)
    problem = Problem(nn.Linear(5, 3), blobs(clients=4), batch_size=8, dtype=torch.float64)
    start, towards, minus = torch.randn(3, 4, 18).double()
    column = torch.tensor([[0.0], [0.5], [1.0], [0.9]]).double()
    rows = {"pull": column, "times": column} if pull == "column" else {}
    numbers = {} if rows else {"pull": pull, "times": 0.7}
    found = federation(problem, strategy=strategy).map(
        pulled, each={"start": start, "towards": towards, "minus": minus, **rows}, **numbers
    )
    share, times = (column, column) if rows else (pull, 0.7)
    step = 0.3 * found["slope"]
    expected = start - share * (start - towards) - times * minus - step
    torch.testing.assert_close(found["moved"], expected)
    torch.testing.assert_close(found["elsewhere"], minus - share * (minus - towards) - step)
