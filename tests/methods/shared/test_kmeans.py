"""k-means against scikit-learn's, and where it must differ from it."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fedkin.methods.shared.kmeans import Grouped, kmeans, kmeans_anew, numbered_like, plus_plus


def clouds(seed=0, spread=1.0):
    g = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(4, 6, generator=g, dtype=torch.float64)
    noise = spread * torch.randn(80, 6, generator=g, dtype=torch.float64)
    return centres.repeat(20, 1) + noise, torch.rand(80, generator=g) + 0.5


@pytest.mark.parametrize("seed", range(3))
def test_from_given_centres_it_is_lloyds_algorithm(seed):
    points, weights = clouds(seed, 2.0)
    theirs = KMeans(4, init=points[:4].numpy(), n_init=1, tol=0, algorithm="lloyd")
    theirs.fit(points.numpy(), sample_weight=weights.numpy())
    ours = kmeans(points, points[:4], weights)
    assert ours.labels.tolist() == theirs.labels_.tolist()
    np.testing.assert_allclose(ours.centres, theirs.cluster_centers_, rtol=1e-6)
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=1e-6)
    assert ours.iterations == theirs.n_iter_


def test_a_centre_that_no_point_is_nearest_to_stays():
    points = torch.tensor([[0.0], [1.0], [5.0]])
    found = kmeans(points, torch.tensor([[0.4], [4.0], [100.0]]), torch.ones(3))
    assert found.labels.tolist() == [0, 0, 1]
    assert found.centres[:, 0].tolist() == [0.5, 5.0, 100.0]


def test_anew_it_finds_clouds_that_are_apart():
    points, weights = clouds(1, 0.2)
    found = kmeans_anew(points, 4, weights, np.random.default_rng(0))
    assert adjusted_rand_score([0, 1, 2, 3] * 20, found.labels) == 1.0


def test_centres_of_kmeans_plus_plus_are_drawn_by_weight_and_squared_distance():
    # from point 0 the next is 1 or 2 with chances 1*1 : 2*9
    points, weights = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([1.0, 1.0, 2.0])
    random, drawn = np.random.default_rng(0), []
    while len(drawn) < 500:
        first, second = plus_plus(points, 2, weights, random)[:, 0].tolist()
        if first == 0:
            drawn.append(second)
    assert np.mean(np.array(drawn) == 3) == pytest.approx(18 / 19, abs=0.03)


def test_more_centres_than_different_points():
    found = kmeans_anew(torch.zeros(3, 2), 2, torch.ones(3), np.random.default_rng(0))
    assert found.inertia == 0
    assert found.centres.eq(0).all()


def test_numbers_are_those_of_the_nearest_old_centres():
    old = torch.tensor([[0.0], [10.0], [20.0]])
    new = Grouped(torch.tensor([0, 1, 2, 0]), torch.tensor([[19.0], [1.0], [11.0]]), 1, 0.0)
    found = numbered_like(new, old)
    assert found.labels.tolist() == [2, 0, 1, 2]
    assert found.centres[:, 0].tolist() == [1.0, 11.0, 19.0]
