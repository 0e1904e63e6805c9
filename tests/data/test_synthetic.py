"""The generators follow the papers' formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.data import ClientData, DataConfig, load

GENERATED = [
    "digits",
    "rotated-digits",
    "perm-synthetic",
    "pfedkm-synthetic",
    "synthetic",
    "linear",
    "unified-synthetic",
    "unified-ws",
]


def made(name: str, seed: int = 0, **options: object) -> ClientData:
    return load(DataConfig(name=name, **options), seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", GENERATED)
def test_generators_give_float_inputs_and_proper_targets(name: str) -> None:
    data = made(name)
    assert data.train.x.dtype == torch.float32
    assert torch.isfinite(data.train.x).all()
    if data.num_classes is None:
        assert data.train.y.dtype == torch.float32
    else:
        assert data.train.y.dtype == torch.int64
        assert 0 <= data.train.y.min() <= data.train.y.max() < data.num_classes


@pytest.mark.parametrize("name", GENERATED)
def test_same_seed_same_bits_and_another_seed_others(name: str) -> None:
    first, again, other = made(name, 1), made(name, 1), made(name, 2)
    assert torch.equal(first.train.x, again.train.x)
    assert torch.equal(first.test.y, again.test.y)
    assert not torch.equal(first.train.x[:50], other.train.x[:50])


def test_perm_halves_have_opposite_means_and_opposite_labels() -> None:
    data = made("perm-synthetic", test_fraction=0.0)
    assert data.num_clients == 50
    assert data.train.sizes.tolist() == [500] * 50
    assert data.groups is not None
    assert data.groups.tolist() == [0] * 25 + [1] * 25
    x, y = data.train.x.numpy(), data.train.y.numpy()
    first = slice(0, 12_500)
    np.testing.assert_allclose(x[first].mean(0), 0.2, atol=0.05)
    np.testing.assert_allclose(x[12_500:].mean(0), -0.2, atol=0.05)
    np.testing.assert_allclose(x[first].var(0), np.arange(1, 61) ** -1.2, rtol=0.06)
    # One linear rule labels the first half; its opposite the second.
    rule = np.linalg.lstsq(x[first], 2.0 * y[first] - 1, rcond=None)[0]
    assert ((x[first] @ rule > 0) == y[first]).mean() > 0.9
    assert ((x[12_500:] @ rule > 0) == y[12_500:]).mean() < 0.1


def test_pfedkm_clusters_lie_three_beta_apart() -> None:
    data = made("pfedkm-synthetic", synthetic_b=4.0)
    assert data.groups is not None
    assert data.groups.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    means = torch.stack([data.train[i][0].mean() for i in range(60)]).reshape(3, 20).mean(1)
    np.testing.assert_allclose(means, [-12, 0, 12], atol=3)
    sizes = data.train.sizes + data.test.sizes
    assert sizes.min() >= 50
    assert sizes.max() > 10 * sizes.min()


def test_fedprox_inputs_differ_with_b() -> None:
    def between(b: float) -> float:
        data = made("synthetic", synthetic_b=b)
        return float(torch.stack([data.train[i][0].mean() for i in range(30)]).std())

    assert between(0.0) < 0.3 < 1.0 < between(2.0)


def test_unified_models_are_apart_by_the_spread() -> None:
    near, far = made("unified-synthetic", spread=0.0), made("unified-synthetic", spread=1.0)
    assert near.train.sizes.tolist() == [1000] * 20

    def rates(data: ClientData) -> torch.Tensor:
        return torch.stack([data.train[i][1].float().mean() for i in range(20)])

    assert 0.2 <= near.train.x.min() <= near.train.x.max() <= 0.5
    # w.x is about .5 * .35 * 15 = 2.6, and 1 / (1 + exp(-2.6)) = .93
    assert rates(near).mean() == pytest.approx(0.93, abs=0.01)
    assert rates(near).std() < 0.02 < 0.1 < rates(far).std()


def test_unified_ws_shares_all_but_five_weights() -> None:
    data = made("unified-ws", spread=0.0, samples=50_000, num_clients=2, dim=15)
    x, y = data.train.x.numpy(), data.train.y.numpy().astype(float)
    assert x.min() >= 0
    assert x.max() <= 0.1
    slopes = np.linalg.lstsq(x - x.mean(0), y - y.mean(), rcond=None)[0] * 4
    assert np.abs(slopes[10:]).max() < 0.5 < np.abs(slopes[:10]).max()


def test_linear_is_linear_up_to_the_noise() -> None:
    data = made("linear", noise=0.0)
    x, y = data.train[3]
    assert (x @ torch.linalg.lstsq(x, y[:, None]).solution).squeeze().numpy() == pytest.approx(
        y.numpy(), abs=1e-4
    )


def test_rotated_digits_are_24_clients_in_four_turned_groups_of_about_50_images() -> None:
    data = made("rotated-digits")
    assert data.num_clients == 24
    assert data.input_shape == (1, 8, 8)
    assert set(data.train.sizes.tolist()) <= {49, 50}
    assert data.test.sizes.min() >= 24
    assert data.groups is not None
    assert data.groups.tolist() == [g for g in range(4) for _ in range(6)]
    plain = made("rotated-digits", rotation_groups=1)
    assert (plain.train.x.min(), plain.train.x.max()) == (0, 1)
    for client in (0, 6, 12, 18):
        turned = torch.rot90(plain.train[client][0], client // 6, (2, 3))
        assert torch.equal(data.train[client][0], turned)
        assert torch.equal(data.train[client][1], plain.train[client][1])


def test_fedprox_labels_depend_on_a() -> None:
    """With u_kc ~ N(0, a) the logits of class c have u_kc*(sum of x + 1) in common."""
    options = {"synthetic_b": 0.0, "samples": 200, "test_fraction": 0.0}
    small, large = (made("synthetic", synthetic_a=a, **options) for a in (0.0, 1e6))
    assert torch.equal(small.train.x, large.train.x)
    assert np.mean([len(small.train[k][1].unique()) for k in range(30)]) > 3
    for k in range(30):
        # where u is large next to all else: the class of the largest u, or of the smallest
        x, y = large.train[k]
        above = x.double().sum(1) + 1 > 0
        assert len(y[above].unique()) <= 1
        assert len(y[~above].unique()) <= 1
    assert len(large.train.y.unique()) > 5  # each client has classes of its own
