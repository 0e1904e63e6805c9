"""Mixing weights against a general solver, in their limits, and at the edges."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from fedkin.errors import FedkinError
from fedkin.methods.shared import mixing


def solve_generally(z, n, lam):
    """One row of the problem by SciPy's SLSQP, which knows nothing of its structure."""
    start = n / n.sum()
    scale = abs(z).max() + lam * (1 / n).max()
    found = minimize(
        lambda a: (a @ z + lam * (a**2 / n).sum()) / scale,
        start,
        jac=lambda a: (z + 2 * lam * a / n) / scale,
        method="SLSQP",
        bounds=[(0, 1)] * len(z),
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return found.x


def cost(alpha, z, n, lam):
    return (alpha * z).sum(1) + lam * (alpha**2 / n).sum(1)


def instance(clients, seed, spread=1.0):
    """Distances between random gradients, and sample counts that differ by about e^(6*spread)."""
    random = np.random.default_rng(seed)
    g = torch.from_numpy(random.normal(size=(clients, 7)) * random.uniform(0.1, 2, (clients, 1)))
    n = torch.from_numpy(np.ceil(np.exp(random.uniform(0, 6 * spread, clients)) * 10))
    return mixing.squared_distances(g), n


@pytest.mark.parametrize("clients", [1, 2, 3, 8, 15])
@pytest.mark.parametrize("lam_rel", [0.01, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_exact_weights_are_those_of_a_general_solver(clients, lam_rel, spread):
    for seed in range(3):
        z, n = instance(clients, seed, spread)
        lam = mixing.scale_free(z, n, lam_rel) or lam_rel
        alpha = mixing.simplex_weights(z, n, lam)
        general = np.stack([solve_generally(row, n.numpy(), lam) for row in z.numpy()])
        np.testing.assert_allclose(alpha, general, atol=2e-5)
        assert (cost(alpha, z, n, lam) <= cost(torch.from_numpy(general), z, n, lam) + 1e-9).all()
        torch.testing.assert_close(alpha.sum(1), torch.ones(clients, dtype=torch.float64))


@pytest.mark.parametrize("lam_rel", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("spread", [0.0, 0.4])
def test_projected_gradient_steps_agree_with_the_exact_solution(lam_rel, spread):
    for seed in range(3):
        z, n = instance(12, seed, spread)
        lam = mixing.scale_free(z, n, lam_rel)
        exact, stepped = (f(z, n, lam) for f in (mixing.simplex_weights, mixing.projected_gradient))
        torch.testing.assert_close(stepped, exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("ratio", [10.0**4, pytest.param(10.0**6, marks=pytest.mark.slow)])
def test_projected_gradient_converges_where_sample_counts_differ_much(ratio):
    z, _ = instance(8, 1)
    n = torch.logspace(0, np.log10(ratio), 8, dtype=torch.float64)
    for lam_rel in (1e-4, 0.3, 30.0):
        lam = mixing.scale_free(z, n, lam_rel)
        found = mixing.projected_gradient(z, n, lam)
        torch.testing.assert_close(found, mixing.simplex_weights(z, n, lam), rtol=0, atol=1e-7)


def test_projected_gradient_says_so_where_it_cannot_converge(monkeypatch):
    monkeypatch.setattr(mixing, "MOST_STEPS", 100)
    z, _ = instance(8, 1)
    n = torch.logspace(0, 4, 8, dtype=torch.float64)
    with pytest.raises(FedkinError, match=r"factor of 1e\+04.*solver = 'exact'.*solver_steps"):
        mixing.projected_gradient(z, n, mixing.scale_free(z, n, 1.0))


def test_so_many_projected_gradient_steps_are_those_of_the_paper():
    z, n = instance(5, 2, 0.3)
    lam = mixing.scale_free(z, n, 1.0)
    step = float(n.min()) / (2 * lam)
    alpha = np.tile((n / n.sum()).numpy(), (5, 1))
    for _ in range(3):
        moved = alpha - step * (z.numpy() + 2 * lam * alpha / n.numpy())
        # onto the simplex by the level at which the clipped rest sums to one, by bisection
        low, high = moved.min() - 1, moved.max()
        low, high = np.full((5, 1), low), np.full((5, 1), high)
        for _ in range(100):
            level = (low + high) / 2
            much = np.maximum(moved - level, 0).sum(1, keepdims=True) > 1
            low, high = np.where(much, level, low), np.where(much, high, level)
        alpha = np.maximum(moved - level, 0)
    np.testing.assert_allclose(mixing.projected_gradient(z, n, lam, steps=3), alpha, atol=1e-12)


def test_a_cost_per_client_is_part_of_z():
    z, n = instance(6, 0)
    capacity = torch.linspace(0, 3, 6, dtype=torch.float64)
    alpha = mixing.simplex_weights(z + capacity, n, 20.0)
    general = [solve_generally(row, n.numpy(), 20.0) for row in (z + capacity).numpy()]
    np.testing.assert_allclose(alpha, np.stack(general), atol=2e-5)


def test_small_lam_puts_all_weight_on_the_nearest_client():
    z, n = instance(9, 1)
    for lam in (1e-9, 0.0):
        for solve in (mixing.simplex_weights, mixing.projected_gradient):
            torch.testing.assert_close(solve(z, n, lam), torch.eye(9, dtype=torch.float64))


def test_large_lam_gives_weights_proportional_to_sample_counts():
    z, n = instance(9, 2)
    expected = (n / n.sum()).expand(9, 9)
    torch.testing.assert_close(mixing.simplex_weights(z, n, 1e15), expected)


def test_equal_distances_give_weights_proportional_to_sample_counts():
    n = torch.tensor([1.0, 10.0, 1e6])
    for z in (torch.zeros(3, 3), torch.full((3, 3), 5.0)):
        for lam in (0.0, 1e-6, 1.0, 1e6):
            alpha = mixing.simplex_weights(z, n, lam)
            torch.testing.assert_close(alpha, (n / n.sum()).double().expand(3, 3))


def test_one_client_learns_from_itself():
    one = torch.ones(1, 1, dtype=torch.float64)
    z, n = torch.zeros(1, 1), torch.tensor([7])
    assert torch.equal(mixing.simplex_weights(z, n, mixing.scale_free(z, n, 1.0)), one)


def test_two_clients_by_hand():
    # own weight a: a*0 + (1-a)*z + lam*(a^2/n1 + (1-a)^2/n2) has its minimum where
    # -z + 2*lam*(a/n1 - (1-a)/n2) = 0, so a = (z/(2*lam) + 1/n2) / (1/n1 + 1/n2)
    z, n, lam = torch.tensor([[0.0, 3.0], [3.0, 0.0]]), torch.tensor([20, 80]), 200.0
    a = (3 / 400 + 1 / 80) / (1 / 20 + 1 / 80)
    b = (3 / 400 + 1 / 20) / (1 / 20 + 1 / 80)
    expected = torch.tensor([[a, 1 - a], [1 - b, b]], dtype=torch.float64)
    torch.testing.assert_close(mixing.simplex_weights(z, n, lam), expected)


def test_a_client_ruled_out_gets_no_weight_and_gives_none():
    z, n = instance(5, 3)
    z[2], z[:, 2] = torch.inf, torch.inf
    z[2, 2] = 0
    lam = mixing.scale_free(z, n, 1.0)
    assert np.isfinite(lam)
    others = [0, 1, 3, 4]
    expected = mixing.simplex_weights(z[others][:, others], n[others], lam)
    for solve in (mixing.simplex_weights, mixing.projected_gradient):
        alpha = solve(z, n, lam)
        assert alpha[2].tolist() == [0, 0, 1, 0, 0]
        torch.testing.assert_close(alpha[others][:, others], expected, rtol=0, atol=1e-6)


def test_weights_for_the_nearest_few_are_the_best_among_them():
    z, n = instance(8, 4)
    alpha = mixing.simplex_weights(mixing.only_nearest(z, 3), n, 1e4)
    assert ((alpha > 0).sum(1) <= 3).all()
    for i, row in enumerate(z):
        few = row.argsort()[:3]
        best = mixing.simplex_weights(row[few][None], n[few], 1e4)[0]
        torch.testing.assert_close(alpha[i, few], best)
    assert mixing.only_nearest(z, 8) is z


def test_lam_rel_does_not_depend_on_the_units_of_gradients_or_samples():
    g, n = torch.randn(6, 9, generator=torch.Generator().manual_seed(0)), torch.arange(1, 7) * 10
    z, z_scaled = mixing.squared_distances(g), mixing.squared_distances(1000 * g)
    alpha = mixing.simplex_weights(z, n, mixing.scale_free(z, n, 0.7))
    scaled = mixing.simplex_weights(z_scaled, 5 * n, mixing.scale_free(z_scaled, 5 * n, 0.7))
    torch.testing.assert_close(alpha, scaled)


def test_distances_are_those_computed_pair_by_pair(monkeypatch):
    g = torch.randn(7, 33, generator=torch.Generator().manual_seed(1))
    expected = cdist(g.double(), g.double(), "sqeuclidean")
    for chunk in (1 << 22, 20):
        monkeypatch.setattr(mixing, "CHUNK", chunk)
        np.testing.assert_allclose(mixing.squared_distances(g), expected, rtol=1e-12, atol=1e-12)


def test_distances_survive_a_large_part_that_all_gradients_share():
    g = 1e6 + torch.randn(5, 50, generator=torch.Generator().manual_seed(2))
    expected = cdist(g.double(), g.double(), "sqeuclidean")
    np.testing.assert_allclose(mixing.squared_distances(g), expected, rtol=1e-9)


def test_weights_do_not_depend_on_how_rows_are_cut(monkeypatch):
    z, n = instance(11, 5)
    whole = mixing.simplex_weights(z, n, 3.0)
    monkeypatch.setattr(mixing, "CHUNK", 30)
    assert torch.equal(mixing.simplex_weights(z, n, 3.0), whole)


def test_a_sketch_keeps_distances_within_a_few_per_cent():
    g = torch.randn(20, 5000, generator=torch.Generator().manual_seed(3))
    z, sketched = (mixing.squared_distances(x) for x in (g, mixing.sketch(g, 1024)))
    error = (sketched / z - 1)[~torch.eye(20, dtype=torch.bool)]
    assert error.abs().mean() < 0.05
    assert error.abs().max() < 0.2
    half = torch.cat([mixing.sketch(g[:10], 1024), mixing.sketch(g[10:], 1024)])
    assert torch.equal(half, mixing.sketch(g, 1024))


def test_a_sketch_of_gradients_that_differ_everywhere_alike_keeps_their_distance():
    # without random signs, entries of one sign would add up: d^2/size in place of d
    g = torch.stack([torch.zeros(5000), torch.ones(5000)])
    z = float(mixing.squared_distances(mixing.sketch(g, 1024))[0, 1])
    assert abs(z / 5000 - 1) < 4 * (2 / 1024) ** 0.5
