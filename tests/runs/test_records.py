"""Rows of metrics.csv and clients.csv, and what stands beside them."""

from __future__ import annotations

import pytest
import torch

from fedkin.methods import FedAvg, Submodel
from fedkin.runs.contender import local_like
from fedkin.runs.records import worst_tenth


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (35, 3)])
def test_the_worst_tenth_is_rounded_down_and_never_nobody(clients: int, worst: int) -> None:
    scores = torch.arange(clients, dtype=torch.float64).flip(0)
    assert worst_tenth(scores) == pytest.approx(sum(range(worst)) / worst)


def test_training_alone_does_the_work_of_the_method_beside_it() -> None:
    alone = local_like(FedAvg(lr=0.3, local_steps=7, local_epochs=2, momentum=0.5))
    assert (alone.lr, alone.local_steps, alone.local_epochs, alone.momentum) == (0.3, 7, 2, 0.5)
    sized = local_like(Submodel(lr=0.3, local_epochs=3, rates=(0.5,)))
    assert (sized.lr, sized.local_epochs) == (0.3, 3)
    assert tuple(sized.rates) == (0.5,)  # type: ignore[attr-defined]
