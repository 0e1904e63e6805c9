"""mu of the unified objective where nobody gives it, and shares that differ between clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData
from fedkin.errors import FedkinError
from fedkin.methods import ACD, ASCD, ASVRCD, LSGD
from fedkin.runs.config import make_config
from tests.helpers import federation, personal_models, run
from tests.methods.unified_truth import LAM, RELAX, Truth, logistic


def drawn(name: str, spread: float, seed: int = 0) -> Problem:
    """The papers' synthetic data, as figures 1 and 2 have them."""
    values = {
        "method": "asvrcd", "seed": seed, "data": {"name": name, "spread": spread},
        "model": {"name": "linear-no-bias", "loss": "logistic", "dtype": "float64",
                  "batch_size": 1},
    }  # fmt: skip
    config = make_config(values)
    return config.make_problem(config.make_data())


def hessians(problem: Problem, betas: Tensor) -> Tensor:
    """Of every client's loss at its beta: mean of s(1 - s) x x^T."""
    x = problem.data.train.x.view(problem.num_clients, -1, problem.size).double()
    s = torch.sigmoid((x * betas[:, None]).sum(2))
    return x.mT @ ((s * (1 - s))[..., None] * x) / x.shape[1]


def mixture_optimum(problem: Problem, lam: float) -> tuple[Tensor, float]:
    """Betas that minimise 1/M sum f_m(beta_m) + lam/(2M) sum |beta_m - mean|^2, and the least F."""
    M, d = problem.num_clients, problem.size
    x = problem.data.train.x.view(M, -1, d).double().numpy()
    y = problem.data.train.y.view(M, -1).double().numpy()

    def both(flat: np.ndarray) -> tuple[float, np.ndarray]:
        b = flat.reshape(M, d)
        z = np.einsum("mnd,md->mn", x, b)
        apart = b - b.mean(0)
        value = (np.logaddexp(0, z) - y * z).mean() + lam / 2 * (apart**2).sum() / M
        slope = np.einsum("mn,mnd->md", 1 / (1 + np.exp(-z)) - y, x) / z.shape[1] + lam * apart
        return float(value), slope.ravel() / M

    exact = {"maxiter": 4000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-9}
    found = minimize(both, np.zeros(M * d), jac=True, method="L-BFGS-B", options=exact)
    return torch.from_numpy(found.x).view(M, d), float(found.fun)


def curvature_of_the_mixture(problem: Problem, betas: Tensor, lam: float) -> float:
    """The smallest eigenvalue of F's Hessian in (w, beta_1..M), written out block by block."""
    M, d = problem.num_clients, problem.size
    eye = torch.eye(d, dtype=torch.float64)
    whole = torch.zeros(d * (M + 1), d * (M + 1), dtype=torch.float64)
    whole[:d, :d] = lam / M * eye
    for m, own in enumerate(hessians(problem, betas)):
        at = slice(d * (m + 1), d * (m + 2))
        whole[at, at] = (own + lam * eye) / M
        whole[:d, at] = whole[at, :d] = -lam / M**1.5 * eye
    return float(torch.linalg.eigvalsh(whole)[0])


@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_mu_is_at_most_what_the_mixture_has_and_not_much_less(spread: float) -> None:
    problem = drawn("unified-synthetic", spread)
    for lam in {0.01 * spread, 0.01 / spread}:
        betas, _ = mixture_optimum(problem, lam)
        true = curvature_of_the_mixture(problem, betas, lam)
        found = ASVRCD(objective="mx2", lam=lam).constants(federation(problem)).mu
        assert true / 3 < found <= true


def test_the_papers_mu_is_the_mean_hessians_least_eigenvalue_at_the_truth_over_3m() -> None:
    problem = drawn("unified-synthetic", 0.3)
    truth = problem.data.truth
    assert truth is not None
    least = torch.linalg.eigvalsh(hessians(problem, truth.betas).mean(0))[0]
    for name in ("mx2", "mt2", "apfl2"):
        found = ASVRCD(objective=name, convex="truth").constants(federation(problem)).mu
        assert found == pytest.approx(float(least) / 60, rel=1e-6)


def test_where_betas_are_not_tied_mu_is_that_of_the_least_convex_client() -> None:
    problem = drawn("unified-ws", 10.0)
    method = ASVRCD(objective="ws2", shared_parts="0:10")
    found = method.constants(federation(problem)).mu
    truth = problem.data.truth
    assert truth is not None
    own = hessians(problem, truth.betas)
    # the own block's curvature at one client, 1/M of it in F, bounds that of F from above
    assert found <= float(torch.linalg.eigvalsh(own[:, 10:, 10:])[:, 0].min()) / 20
    assert found > float(torch.linalg.eigvalsh(own)[:, 0].min()) / 20 / 10


def test_a_model_that_is_not_linear_gets_a_mu_below_one_sample_in_all() -> None:
    problem = logistic(l2=0.0)
    problem.spec = problem.spec.__class__(
        torch.nn.Sequential(problem.spec.module, torch.nn.Tanh()),
        problem.spec.layout, problem.spec.loss,
    )  # fmt: skip
    found = ASCD(objective="mx2", smooth=2.0).constants(federation(problem)).mu
    assert found == pytest.approx(2.0 / 48 / (3 * 4))


def test_mu_from_hessians_is_refused_where_there_are_none() -> None:
    with pytest.raises(FedkinError, match="generator's data"):
        ASCD(convex="truth").constants(federation(logistic()))


# shares that differ ------------------------------------------------------------------------


def shared(
    shares: Any, columns: dict[str, list[Any]] | None = None, **batches: Any
) -> tuple[Federation, Any]:
    problem = logistic(clients=4, samples=6, dimension=3, l2=0.3, length=1.5, **batches)
    data = problem.data
    named = ClientData(data.train, data.test, 2, columns=columns or {})
    problem.data = named
    settings = {"objective": "apfl2", "lam": LAM, "relax": RELAX, "w_share": shares}
    return federation(problem), settings


SHARES = (0.1, 0.3, 0.5, 0.7)


def test_apfl2_with_a_share_for_each_client_reaches_its_own_optimum() -> None:
    fed, settings = shared(SHARES)
    truth = Truth(fed.problem, "traditional")

    def both(flat: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.tensor(flat, requires_grad=True)
        w, betas = at[:3] / 2, at[3:].view(4, 3)
        mixes = [(1 - a) * betas[m] + a * w for m, a in enumerate(SHARES)]
        parts = [RELAX * truth.loss(m, w) + truth.loss(m, mixes[m]) for m in range(4)]
        value = torch.stack(parts).mean()
        return value.item(), torch.autograd.grad(value, at)[0].numpy()

    best = minimize(both, np.zeros(15), jac=True, method="L-BFGS-B", options={"gtol": 1e-11})
    method = ACD(**settings)
    state = run(method, fed, 300)
    assert method.value(fed, state) == pytest.approx(best.fun, abs=1e-9)
    w, betas = torch.from_numpy(best.x[:3]) / 2, torch.from_numpy(best.x[3:]).view(4, 3)
    a = torch.tensor(SHARES, dtype=torch.float64)[:, None]
    mixes = (1 - a) * betas + a * w
    torch.testing.assert_close(personal_models(method, fed, state), mixes, rtol=1e-3, atol=1e-4)


def test_every_client_steps_and_mixes_by_its_own_share() -> None:
    # the optimum does not tell: whatever the share, beta_m makes up for it
    fed, settings = shared(SHARES, batch_size=6, reshuffle=True)
    truth, lr = Truth(fed.problem, "traditional"), 0.2
    method = LSGD(**settings, lr=lr, local_steps=1)
    state = run(method, fed, 1)
    zero = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    slopes = [torch.autograd.grad(truth.loss(m, zero), zero)[0] for m in range(4)]
    w = -lr * sum((RELAX + a) * g for a, g in zip(SHARES, slopes, strict=True)) / 4
    mixes = [(1 - a) * -lr * (1 - a) * g + a * w for a, g in zip(SHARES, slopes, strict=True)]
    torch.testing.assert_close(state.w, w)
    torch.testing.assert_close(personal_models(method, fed, state), torch.stack(mixes))


def test_constants_are_those_of_the_largest_and_smallest_shares() -> None:
    fed, settings = shared(SHARES)
    L, M = 2.0, 4
    found = ASCD(**settings, smooth=L, convex=0.2).constants(fed)
    assert found.L_w == pytest.approx((RELAX + 0.7**2) * L / M)
    assert found.L_beta == pytest.approx((1 - 0.1) ** 2 * L / M)
    # the published mu'(1 - a_max)^2/(2M) is never larger than what we take
    assert found.mu >= 0.2 * (1 - 0.7) ** 2 / (2 * M) * 0.99


def test_shares_come_from_a_column_of_the_client_table_too() -> None:
    outcomes = []
    for shares, columns in ((SHARES, None), ("a", {"a": [str(a) for a in SHARES]})):
        fed, settings = shared(shares, columns)
        for method in (LSGD(**settings), ASVRCD(**settings)):
            state = run(method, fed, 4)
            outcomes.append(personal_models(method, fed, state))
    assert torch.equal(outcomes[0], outcomes[2])
    assert torch.equal(outcomes[1], outcomes[3])


@pytest.mark.parametrize(
    ("shares", "columns", "words"),
    [
        (1.0, None, "above 0 and below 1"),
        (0.0, None, "above 0 and below 1"),
        ((0.1, 0.2), None, "2 numbers for 4 clients"),
        ((0.1, 0.2, 0.3, 1.5), None, "above 0 and below 1"),
        ("a", {"a": [0.1, 0.2, 0.3, "x"]}, "not a number"),
        ("b", {"a": [0.1, 0.2, 0.3, 0.4]}, "client column 'b'"),
    ],
)
def test_shares_that_make_no_sense_are_refused(shares: Any, columns: Any, words: str) -> None:
    fed, settings = shared(shares, columns)
    with pytest.raises(FedkinError, match=words):
        LSGD(**settings).init(fed)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("0.3", 0.3), ("0.1,0.3", (0.1, 0.3)), ([0.1, 0.3], (0.1, 0.3)), ("share", "share")],
)
def test_shares_are_read_as_people_write_them(given: Any, expected: Any) -> None:
    config = make_config({"method": "lsgd", "options": {"objective": "apfl2", "w_share": given}})
    assert config.make_method().w_share == expected  # type: ignore[attr-defined]


def test_a_share_out_of_range_is_refused_with_a_sentence() -> None:
    with pytest.raises(FedkinError, match="w_share must be above 0 and below 1, but it has"):
        make_config({"method": "lsgd", "options": {"objective": "apfl2", "w_share": 1.5}})
