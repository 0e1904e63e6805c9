"""Parts of the clients: the same bits as in the whole."""

from __future__ import annotations

import torch

from fedkin.data import ClientData, DataConfig, load
from fedkin.data.shards import load_elsewhere, load_some, without_examples


def same(part: ClientData, whole: ClientData, first: int) -> None:
    for i, name in enumerate(part.names):
        assert name == whole.names[first + i]
        for own, all_ in ((part.train, whole.train), (part.test, whole.test)):
            for a, b in zip(own[i], all_[first + i], strict=True):
                assert torch.equal(a, b)


def test_a_shard_of_a_crowd_has_the_bits_of_the_whole_crowd() -> None:
    config = DataConfig(name="crowd", num_clients=2500, samples=5, dim=4)
    whole = load(config, 7)
    for first, last in ((0, 10), (990, 1010), (2400, 2500)):
        same(load_some(config, 7, first, last), whole, first)


def test_a_crowd_may_have_no_test_samples() -> None:
    config = DataConfig(name="crowd", num_clients=20, samples=5, dim=4, test_fraction=0.0)
    part = load_some(config, 7, 3, 8)
    assert part.test.x.shape == (0, 4)
    assert part.train.x.shape == (25, 4)


def test_a_shard_of_other_data_is_a_part_of_what_is_loaded() -> None:
    config = DataConfig(name="digits", num_clients=6, validation_fraction=0.2)
    same(load_some(config, 3, 2, 5), load(config, 3), 2)


def test_data_elsewhere_tell_sizes_names_and_class_counts_but_no_example() -> None:
    config = DataConfig(name="digits", num_clients=6)
    here, (there, digest, _) = load(config, 3), load_elsewhere(config, 3)
    assert torch.equal(there.train.sizes, here.train.sizes)
    assert there.names == here.names
    assert not there.train.here
    assert float(there.train.x.abs().sum()) == 0
    assert there.counts is not None
    assert torch.equal(there.counts.sum(1), here.train.sizes)
    assert len(digest) == 64
    assert torch.equal(without_examples(there).counts, there.counts)


def test_an_easy_crowd_can_be_learnt() -> None:
    data = load(DataConfig(name="crowd", num_clients=200, spread=0.0), 0)
    x, y = data.train.x.double(), torch.nn.functional.one_hot(data.train.y, 10).double()
    w = torch.linalg.lstsq(x, y).solution
    assert float(((data.test.x.double() @ w).argmax(1) == data.test.y).double().mean()) > 0.7
