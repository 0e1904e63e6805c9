"""Parts of a model by name."""

import pytest
import torch
from torch import nn

from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods.shared.parts import place
from tests.helpers import blobs


def layout():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    return Problem(model, blobs(clients=2)).layout


def test_a_part_is_its_layers_and_an_exclamation_mark_means_all_others() -> None:
    whole = layout()
    assert torch.equal(place(whole, "0").index, torch.arange(24))  # 5*4 weights, 4 biases
    assert torch.equal(place(whole, "!0").index, torch.arange(24, 39))
    assert torch.equal(place(whole, "").index, torch.arange(39))


def test_of_everything_there_are_no_others() -> None:
    with pytest.raises(FedkinError, match="nothing of it would be left"):
        place(layout(), "!0,2")
