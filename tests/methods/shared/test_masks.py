"""Masks and channel choices: how much, how often, in which order."""

import numpy as np
import pytest
import torch

from fedkin.errors import FedkinError
from fedkin.methods.shared.masks import (
    KINDS,
    assign_rates,
    choose,
    coordinate_window,
    parse_rates,
    shuffled,
)
from fedkin.models import build
from fedkin.models.layout import Layout
from fedkin.models.widths import Widths

SHARES = torch.tensor([[1.0], [0.5], [0.25], [1 / 16]])


@pytest.mark.parametrize("size", [6, 16, 35, 64])
def test_rolling_windows_visit_every_coordinate_equally_often_in_an_epoch(size):
    starts = [shuffled(3, 16, turn) for turn in range(16, 32)]
    assert sorted(starts) == list(range(16))
    visits = sum(coordinate_window(torch.zeros(1, size), SHARES, start, 16) for start in starts)
    assert torch.equal(visits, (16 * SHARES).expand(4, size))


def test_a_window_is_a_run_of_coordinates_that_wraps_around():
    mask = coordinate_window(torch.zeros(1, 8), torch.tensor([[0.5]]), 3, 4)
    assert mask.tolist() == [[1, 1, 0, 0, 0, 0, 1, 1]]


def test_every_epoch_has_an_order_of_its_own():
    epochs = [[shuffled(0, 16, 16 * e + t) for t in range(16)] for e in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != sorted(epochs[0])


def mlp_widths():
    return Widths.of(build("mlp:12,5", (4,), 3), torch.zeros(2, 4))


@pytest.mark.parametrize("windows", ["shared", "per-layer"])
@pytest.mark.parametrize("kind", ["rolling", "shuffled"])
def test_rolling_visits_every_channel_equally_often_in_its_epoch(kind, windows):
    widths, who = Widths.of(build("mlp:12,6", (4,), 3), torch.zeros(2, 4)), torch.arange(2)
    held = [choose(kind, widths, 0.3, 1, turn, who, windows) for turn in range(12, 24)]
    for group, size in enumerate(widths.sizes):
        count = widths.kept(0.3)[group]
        assert held[0][group].shape == (1, count)
        counts = torch.bincount(torch.cat([row[group] for row in held]).flatten(), minlength=size)
        assert torch.equal(counts, torch.full((size,), 12 // size * count))


def test_shuffled_windows_are_the_sub_models_of_rolling_in_another_order():
    # R = 12 fixed sub-models m^1..m^R, each once in an epoch: the order is one for all layers
    widths, who = mlp_widths(), torch.arange(2)

    def sub_models(kind, turns):
        chosen = (choose(kind, widths, 0.3, 5, turn, who) for turn in turns)
        return [tuple(tuple(row[0].tolist()) for row in groups) for groups in chosen]

    rolling, epochs = sub_models("rolling", range(12)), [range(12), range(12, 24)]
    orders = [sub_models("shuffled", turns) for turns in epochs]
    for order in orders:
        assert sorted(order) == sorted(rolling)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("kind", ["rolling", "shuffled"])
def test_windows_per_layer_train_weights_that_shared_windows_never_touch(kind):
    widths, who = Widths.of(build("mlp:16,16", (4,), 3), torch.zeros(2, 4)), torch.arange(1)
    never = {}
    for windows in ("shared", "per-layer"):
        touched = torch.zeros(widths.layout.size, dtype=torch.bool)
        for turn in range(400):
            touched[widths.index(choose(kind, widths, 1 / 8, 0, turn, who, windows))] = True
        never[windows] = 1 - touched.double().mean().item()
    # of 256 weights between the layers, windows of 2 at one place reach 3 diagonals: 48
    assert never["shared"] == pytest.approx(208 / widths.layout.size)
    assert never["per-layer"] == 0


def test_rolling_moves_on_by_one_channel_and_wraps_around():
    widths = mlp_widths()
    windows = [choose("rolling", widths, 0.5, 0, t, torch.arange(3))[1].tolist() for t in (0, 1, 3)]
    assert windows == [[[0, 1, 2]], [[1, 2, 3]], [[0, 3, 4]]]


def test_random_channels_are_fresh_for_every_client_and_round():
    widths, who = mlp_widths(), torch.arange(200)
    first, again = (choose("random", widths, 0.5, 0, 4, who)[0] for _ in range(2))
    other = choose("random", widths, 0.5, 0, 5, who)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
    assert (first.diff(dim=1) > 0).all()
    share = torch.bincount(first.flatten(), minlength=12) / 200
    assert (share - 0.5).abs().max() < 0.15
    some = choose("random", widths, 0.5, 0, 4, torch.tensor([7, 150]))[0]
    assert torch.equal(some, first[[7, 150]])


@pytest.mark.parametrize("kind", KINDS)
def test_at_rate_one_every_choice_is_the_whole_model(kind):
    widths = mlp_widths()
    index = widths.index(choose(kind, widths, 1.0, 0, 7, torch.arange(3)))
    assert torch.equal(index, torch.arange(Layout.of(build("mlp:12,5", (4,), 3)).size)[None])


def test_rates_are_dealt_evenly():
    rates = assign_rates((1.0, 0.5, 0.25), 10, np.random.default_rng(0))
    counts = [int((rates == rate).sum()) for rate in (1.0, 0.5, 0.25)]
    assert sorted(counts) == [3, 3, 4]


def test_rates_are_read_as_people_write_them():
    assert parse_rates(["1/4", 0.5, "1"], "column").tolist() == [0.25, 0.5, 1.0]
    for wrong in ("half", 0, 1.5, "1/0", None):
        with pytest.raises(FedkinError, match="column 'device': a rate is"):
            parse_rates([wrong], "column 'device'")
