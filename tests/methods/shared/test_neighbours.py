"""The nearest neighbours by limits, against all distances sorted in NumPy."""

import numpy as np
import pytest
import torch

from fedkin.methods.shared import neighbours


@pytest.fixture(autouse=True)
def few_rows_are_many(monkeypatch):
    for name, value in {"FEW": 50, "BLOCK": 64, "WIDTH": 150}.items():
        monkeypatch.setattr(neighbours, name, value)


def true_order(g):
    g = g.numpy().astype(float)
    apart = ((g[:, None] - g[None]) ** 2).sum(2)
    np.fill_diagonal(apart, np.inf)
    return np.argsort(apart, axis=1), np.sort(apart, axis=1)


@pytest.mark.parametrize(("rows", "noise", "count"), [(700, 0.2, 9), (701, 3.0, 9), (640, 1.0, 81)])
def test_the_nearest_by_limits_are_those_of_all_pairs(rows, noise, count):
    random = np.random.default_rng(1)
    centres = random.normal(size=(20, 8))
    g = centres[random.integers(20, size=rows)] + noise * random.normal(size=(rows, 8))
    g = torch.from_numpy(g.astype(np.float32))
    kin, z = neighbours.nearest(g, count)
    order, apart = true_order(g)
    assert torch.equal(kin[:, 0], torch.arange(rows))
    assert np.mean(kin[:, 1:].numpy() == order[:, : count - 1]) > 0.999
    np.testing.assert_allclose(z[:, 1:].numpy(), apart[:, : count - 1], atol=1e-4)


def test_rows_whose_limits_are_bad_are_done_again(monkeypatch):
    within = neighbours._within
    right = []

    def noted(g, limit, count):
        found, done = within(g, limit, count)
        right.append(done)
        return found, done

    monkeypatch.setattr(neighbours, "_within", noted)
    monkeypatch.setattr(neighbours, "CROWDED", 16)  # about as many as the limits let in
    random = np.random.default_rng(2)
    few, many = random.normal(size=(300, 5)), 9 + 0.1 * random.normal(size=(400, 5))
    g = torch.from_numpy(np.concatenate([few, many]).astype(np.float32))
    kin, _ = neighbours.nearest(g, 9)
    assert 0 < right[0].sum() < len(g)
    _, apart = true_order(g)
    found = ((g[kin[:, 1:]] - g[:, None]).double() ** 2).sum(2).numpy()
    np.testing.assert_allclose(found, apart[:, :8], atol=1e-4)


def test_many_rows_that_are_alike():
    kin, z = neighbours.nearest(torch.ones(300, 4), 5)
    assert z.max() == 0
    assert all(len(set(row)) == 5 for row in kin.tolist())


def test_directions_that_nobody_goes_are_left_out():
    # gradients of a softmax layer: over the classes they sum to zero
    g = torch.randn(200, 3, 4, generator=torch.Generator().manual_seed(0))
    g = (g - g.mean(1, keepdim=True)).flatten(1)
    short = neighbours.turned(g)
    assert short.shape == (200, 8)
    apart, known = (torch.cdist(rows.double(), rows.double()) for rows in (short, g))
    torch.testing.assert_close(apart, known, atol=1e-4, rtol=1e-4)
    whole = torch.randn(200, 12, generator=torch.Generator().manual_seed(1))
    assert neighbours.turned(whole) is whole
