"""Parts of a model by name."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods.shared.parts import last, place
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


def test_a_last_layer_with_weight_norm_is_one_layer() -> None:
    model = nn.Sequential(nn.Linear(5, 4), weight_norm(nn.Linear(4, 3)))
    whole = Problem(model, blobs(clients=2)).layout
    head = place(whole, last(whole, "a method", "head"))
    assert torch.equal(head.index, torch.arange(24, 24 + 3 + 3 + 12))  # bias, lengths, directions
