"""From pool to clients: test sets, caps, shifts, scaling; the same seed gives the same bits."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from fedkin.data import ClientData, DataConfig, checksum, load
from fedkin.data.build import build
from fedkin.data.pool import Pool
from fedkin.errors import FedkinError


def pool(test: bool = True) -> Pool:
    """Images that carry their own row number and class, ten classes, 1000 + 200 of them."""
    y = np.arange(1000) % 10
    x = np.zeros((1000, 1, 4, 4), np.float32)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = np.arange(1000), y
    held = (x[:200] + 5000, y[:200]) if test else None
    return Pool(x, y, 10, test=held)


def built(source: Pool | None = None, seed: int = 0, **options: object) -> ClientData:
    config = DataConfig(**({"name": "images", "num_clients": 10} | options))  # type: ignore[arg-type]
    return build(source or pool(), config.resolved(), seed)


def shares(y: torch.Tensor) -> np.ndarray:
    return np.bincount(y.numpy(), minlength=10) / len(y)


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "classes", "shards", "powerlaw"])
def test_clients_own_test_sets_follow_their_own_classes(partition: str) -> None:
    data = built(partition=partition)
    assert data.num_clients == 10
    assert len(data.test.y) >= 200
    for i in range(10):
        train, test = data.train[i][1], data.test[i][1]
        assert np.abs(shares(train) - shares(test)).sum() / 2 < 0.2


def test_the_whole_official_test_set_stays_at_hand() -> None:
    data = built()
    assert data.global_test is not None
    assert data.global_test[0].shape == (200, 1, 4, 4)
    assert data.train.x[:, 0, 0, 0].max() < 5000 <= data.test.x[:, 0, 0, 0].min()


def test_the_official_test_set_may_be_left_out() -> None:
    data = built(official_test="leave-out", test_fraction=0.25, partition="iid")
    whole = built(partition="iid")
    assert len(data.train.y) + len(data.test.y) == len(whole.train.y)
    assert data.global_test is None


def test_without_official_test_everything_is_pooled_and_split() -> None:
    data = built(official_test=False, test_fraction=0.25, partition="iid")
    assert data.global_test is None
    assert (len(data.train.y), len(data.test.y)) == (900, 300)


def test_no_sample_is_both_trained_on_and_held_out() -> None:
    data = built(pool(test=False), validation_fraction=0.2)
    assert data.validation is not None
    parts = [p.x[:, 0, 0, 0].tolist() for p in (data.train, data.validation, data.test)]
    assert sorted(chain(*parts)) == list(range(1000))


def test_caps_limit_sizes_and_keep_class_shares() -> None:
    data = built(partition="classes", train_per_client=20, test_per_client=6)
    assert data.train.sizes.tolist() == [20] * 10
    assert data.test.sizes.tolist() == [6] * 10
    for i in range(10):
        assert sorted(np.bincount(data.train[i][1], minlength=10))[-2:] == [10, 10]


def test_same_seed_same_bits_and_changing_the_split_keeps_the_partition() -> None:
    assert checksum(built(seed=4)) == checksum(built(seed=4)) != checksum(built(seed=5))
    few, many = (built(pool(False), test_fraction=f) for f in (0.1, 0.4))
    both = [d.train.sizes + d.test.sizes for d in (few, many)]
    assert torch.equal(*both)


def test_label_groups_permute_labels_within_groups_only() -> None:
    data = built(partition="iid", label_groups=2)
    assert data.groups is not None
    assert data.groups.tolist() == [0] * 5 + [1] * 5
    for part in (data.train, data.test):
        true, seen = part.x[:, 0, 0, 1] % 5000, part.y
        cut = int(part.offsets[5])
        assert torch.equal(true[:cut].long(), seen[:cut])
        pairs = set(zip(true[cut:].tolist(), seen[cut:].tolist(), strict=True))
        assert len(pairs) == 10  # one map, the same for training and test
        assert any(a != b for a, b in pairs)


def test_rotation_and_label_groups_cross() -> None:
    data = built(partition="iid", rotation_groups=2, label_groups=2, num_clients=8)
    assert data.groups is not None
    assert data.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_angles_other_than_right_ones_turn_too() -> None:
    data = built(partition="iid", rotation_groups=3, num_clients=3)
    assert torch.isfinite(data.train.x).all()


def test_standardised_rows_of_unit_norm_are_fitted_on_training_data() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    source = Pool(rng.normal(5, 3, (400, 7)), y, 4, test=(rng.normal(50, 3, (80, 7)), y[:80]))
    data = built(source, standardise=True)
    assert data.train.x.mean(0).numpy() == pytest.approx([0] * 7, abs=1e-5)
    assert data.train.x.std(0, correction=0).numpy() == pytest.approx([1] * 7, abs=1e-5)
    assert data.test.x.mean() > 10
    unit = built(source, standardise=True, unit_norm=True)
    assert unit.test.x.norm(dim=1).numpy() == pytest.approx(np.ones(len(unit.test.y)), abs=1e-5)


def test_constant_pixels_survive_standardising() -> None:
    assert torch.isfinite(built(standardise=True, unit_norm=True).train.x).all()


def test_small_clients_of_a_column_are_left_out_and_named() -> None:
    source = Pool(np.ones((12, 2)), np.arange(12) % 2, 2)
    source.clients, source.client_names = np.array([0] * 5 + [1] + [2] * 6), ("a", "b", "c")
    data = build(source, DataConfig(name="npz", min_per_client=3).resolved(), 0)
    assert data.names == ("a", "c")
    assert "left out: b" in data.notes[0]


def test_clients_without_test_samples_are_reported() -> None:
    source = Pool(np.ones((6, 2)), np.arange(6) % 2, 2)
    source.clients, source.client_names = np.array([0] * 5 + [1]), ("a", "b")
    data = build(source, DataConfig(name="npz").resolved(), 0)
    assert data.notes == ("1 clients have no test samples (first: 'b')",)


def test_thousands_of_clients_are_dealt_in_seconds() -> None:
    source = Pool(np.zeros((60_000, 1), np.float32), np.arange(60_000) % 10, 10)
    assert built(source, num_clients=5000, validation_fraction=0.1).num_clients == 5000


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"partition": "column"}, "'column' needs to know each sample's client"),
        ({"partition": "classes", "classes_per_client": 11}, "but the data have 10 classes"),
        ({"num_clients": 2000}, "2000 clients cannot share 1000 samples"),
        ({"partition": "iid", "min_per_client": 200}, "client '0' has 100 samples, fewer than 200"),
        ({"rotation_groups": 11}, "11 groups need as many clients but there are 10"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_be_dealt_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(FedkinError, match=sentence):
        built(**options)  # type: ignore[arg-type]


def test_numbers_have_no_classes_to_deal_or_permute() -> None:
    for options in ({"partition": "shards"}, {"label_groups": 2}):
        with pytest.raises(FedkinError, match="the target is a number"):
            load(DataConfig(name="linear", **options), 0)  # type: ignore[arg-type]


def test_only_square_images_can_be_turned() -> None:
    with pytest.raises(FedkinError, match="rotation_groups needs square images"):
        load(DataConfig(name="perm-synthetic", rotation_groups=2), 0)


def test_more_label_groups_than_orders_are_refused() -> None:
    with pytest.raises(FedkinError, match="2 classes do not have 3 different orders"):
        load(DataConfig(name="perm-synthetic", label_groups=3), 0)


def test_asking_for_another_number_of_clients_than_the_column_has_is_refused() -> None:
    source = Pool(np.ones((4, 2)), np.arange(4) % 2, 2)
    source.clients, source.client_names = np.arange(4) // 2, ("a", "b")
    with pytest.raises(FedkinError, match="num_clients is 3 but the data have 2 clients"):
        build(source, DataConfig(name="npz", num_clients=3).resolved(), 0)


def test_common_test_samples_are_everybodys():
    plain, common = (load(DataConfig(name="digits", num_clients=6, partition="shards",
                                     common_test=count), 0) for count in (0, 25))  # fmt: skip
    for part in ("train", "test"):
        own, more = getattr(plain, part), getattr(common, part)
        held = [{tuple(row.flatten().tolist()) for row in more[i][0]} for i in range(6)]
        alone = [{tuple(row.flatten().tolist()) for row in own[i][0]} for i in range(6)]
        assert all(a <= b for a, b in zip(alone, held, strict=True))
        shared = set.intersection(*held)
        assert len(shared) >= 25 if part == "test" else held == alone
        assert all(b == a | shared for a, b in zip(alone, held, strict=True) if part == "test")
