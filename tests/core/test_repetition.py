"""Rows that need different numbers of turns: each gets its own, however they are computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.models import build
from tests.helpers import federation

TURNS = [0, 1, 2, 3, 5, 8, 13, 40]


def problem(reshuffle: bool) -> Problem:
    torch.manual_seed(0)
    parts = [(torch.randn(n, 4), torch.randint(0, 2, (n,))) for n in range(3, 3 + len(TURNS))]
    data = ClientData(Examples.of(parts), Examples.of(parts), 2)
    model = build("logistic", (4,), 2)
    return Problem(model, data, batch_size=3, reshuffle=reshuffle, dtype=torch.float64)


def step(client: Client, times: Tensor, lr: Tensor, spared: bool) -> dict[str, Tensor]:
    """SGD with noise; a row's own `lr`, and a state that counts its turns."""
    widths: list[int] = []

    def update(v: Tensor, count: Tensor, lr: Any, about: Any) -> tuple[Tensor, Tensor]:
        widths.append(len(client))
        noise = client.uniform("noise")
        return v - lr * (client.grad(v) + about["pull"] * noise), count + 1

    given = {"lr": lr, "about": {"pull": 2 * lr}}
    start = client.initial, torch.zeros_like(client.initial[:, :1])
    if spared:
        v, count = client.repeat(times, update, *start, given=given)
    else:
        v, count = client.repeat(times, lambda v, c: update(v, c, **given), *start)
    smallest = torch.full_like(lr, min(widths))
    return {"v": v, "count": count.expand(len(client), 1), "smallest": smallest}


@pytest.mark.parametrize("reshuffle", [False, True])
def test_rows_spared_of_turns_they_do_not_need_end_as_if_they_were_computed_along(
    reshuffle: bool,
) -> None:
    made = problem(reshuffle)
    columns = {"times": torch.tensor(TURNS).double(), "lr": torch.linspace(0.1, 0.8, len(TURNS))}
    found = []
    for spared in (False, True):
        fed = federation(made, strategy="native:8:1x1")
        answer = fed.map(
            step, each={name: c.double() for name, c in columns.items()}, spared=spared
        )
        assert answer["count"][:, 0].tolist() == TURNS
        assert fed.accounts.column("gradients").tolist() == TURNS
        found.append((answer, fed.accounts.table))
    (along, paid), (spared_of, also_paid) = found
    torch.testing.assert_close(spared_of["v"], along["v"], rtol=1e-12, atol=1e-14)
    assert torch.equal(paid, also_paid)
    assert along["smallest"].unique().tolist() == [len(TURNS)]
    assert spared_of["smallest"].unique().tolist() == [1], "the last turns are one row's alone"


def look_after(client: Client, times: Tensor) -> dict[str, Tensor]:
    client.repeat(times, lambda v: v - 0.1 * client.grad(v), client.initial)
    return {"g": client.grad(client.initial)}


@pytest.mark.parametrize("reshuffle", [False, True])
def test_after_turns_of_different_numbers_each_row_goes_on_with_its_own_next_batch(
    reshuffle: bool,
) -> None:
    made, times = problem(reshuffle), torch.tensor(TURNS).double()
    everybody = federation(made, strategy="stacked").map(look_after, each={"times": times})
    for row in range(len(TURNS)):
        alone = federation(made, strategy="stacked").map(
            look_after, torch.tensor([row]), each={"times": times[[row]]}
        )
        torch.testing.assert_close(everybody["g"][row], alone["g"][0])
