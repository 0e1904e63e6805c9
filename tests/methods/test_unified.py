"""The optimisers of the unified objective reach its optimum, as fast as they promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.methods import ACD, ASCD, ASVRCD, LSGD, SCD, SVRCD, State
from fedkin.methods.unified import Unified
from tests.helpers import federation, personal_models, run
from tests.methods.unified_truth import Truth, logistic

MAIN = ("mx2", "mt2", "apfl2", "ws2")


def easy(name: str, **options: Any) -> Truth:
    """Well-conditioned, so that few rounds tell: L' = 0.86, mu' = 0.3."""
    problem = logistic(clients=3, samples=6, dimension=3, l2=0.3, length=1.5, **options)
    return Truth(problem, name)


def errors(method: Unified, fed: Federation, truth: Truth, rounds: int, every: int) -> list[float]:
    """(F - F*)/(F_0 - F*) every so many rounds."""
    best = truth.optimum()[1]
    state = method.init(fed)
    first = method.value(fed, state) - best
    found = []
    for number in range(1, rounds + 1):
        fed.begin_round(number)
        method.round(fed, state)
        if number % every == 0:
            found.append((method.value(fed, state) - best) / first)
    return found


@pytest.mark.parametrize(
    ("cls", "rounds", "name"),
    [(ACD, 60, name) for name in MAIN]
    # every objective with one of them, and both with two
    + [(ASVRCD, 300, "mx2"), (ASVRCD, 300, "apfl2"), (SVRCD, 400, "mt2"), (SVRCD, 400, "ws2")],
)
def test_full_and_variance_reduced_gradients_lead_to_the_optimum(
    cls: type[Unified], rounds: int, name: str
) -> None:
    truth = easy(name)
    method, fed = cls(**truth.settings()), federation(truth.problem)
    early, late = errors(method, fed, truth, rounds, rounds // 2)
    assert late < 1e-6
    assert late < 1e-2 * early or late < 1e-12  # linearly: the second half gains as well


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.parametrize("cls", [LSGD, SCD, ASCD])
def test_without_noise_the_plain_ones_lead_to_the_optimum_too(
    cls: type[Unified], name: str
) -> None:
    truth = easy(name, batch_size=6, reshuffle=True)
    extra = {"lr": 1.0, "local_steps": 1} if cls is LSGD else {"eta": 2.0}
    method, fed = cls(**truth.settings(), **extra), federation(truth.problem)
    assert errors(method, fed, truth, 200, 200)[0] < 1e-6


@pytest.mark.parametrize(
    ("cls", "step", "name"),
    [(LSGD, "lr", "mx2"), (LSGD, "lr", "apfl2"), (SCD, "eta", "mt2"), (SCD, "eta", "ws2"),
     (ASCD, "eta", "apfl2"), (ASCD, "eta", "mx2")],
)  # fmt: skip
def test_with_noise_the_plain_ones_stop_at_a_floor_that_falls_with_the_step(
    cls: type[Unified], step: str, name: str
) -> None:
    truth = easy(name)
    largest = {"lr": 1.0, "eta": 1.5}[step]
    floors = []
    for size in (largest, largest / 8):
        method = cls(**truth.settings(), **{step: size})
        found = errors(method, federation(truth.problem), truth, 200, 5)
        floors.append(sum(found[20:]) / 20)
    assert 1e-6 < floors[1] < floors[0] / 2
    assert floors[1] < 0.1


def test_ascd_is_stable_however_small_mu_is() -> None:
    # gamma = eta/(4*th1) grows without bound as mu falls: without a longest step F is beyond 1e100
    truth = easy("mx2", batch_size=6, reshuffle=True)
    method, fed = ASCD(**truth.settings(), mu=1e-6), federation(truth.problem)
    assert errors(method, fed, truth, 15, 15)[0] < 1e-6


@pytest.mark.parametrize("cls", [SVRCD])
def test_as_printed_the_variance_is_not_reduced(cls: type[SVRCD]) -> None:
    truth = easy("mx2")
    floors = []
    for corrected in (True, False):
        method = cls(**truth.settings(), corrected=corrected)
        found = errors(method, federation(truth.problem), truth, 300, 10)
        floors.append(sum(found[20:]) / 10)
    assert floors[0] < 1e-3 * floors[1]


def test_unsampled_clients_do_not_bias_the_variance_reduced_ones() -> None:
    truth = easy("mx2")
    fed = federation(truth.problem, fraction=0.67)
    assert errors(SVRCD(**truth.settings(), rho=0.05), fed, truth, 400, 400)[0] < 1e-6


def test_without_rescaling_the_optimum_is_the_same_model() -> None:
    problem = logistic(l2=0.2)
    found = []
    for rescale in (True, False):
        method, fed = ACD(**Truth(problem, "mt2", rescale).settings()), federation(problem)
        state = run(method, fed, 300)
        found.append((method.global_model(state), personal_models(method, fed, state)))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-5, atol=1e-7)


def test_the_mixture_has_the_optimum_of_pfedme_and_l2sgd() -> None:
    truth = Truth(logistic(l2=0.1), "mx2")
    method, fed = ACD(**truth.settings()), federation(truth.problem)
    state = run(method, fed, 200)
    betas = personal_models(method, fed, state)

    def pulled_together(flat: np.ndarray) -> tuple[float, np.ndarray]:
        own = torch.tensor(flat).view(4, -1).requires_grad_()
        apart = (own - own.mean(0)).square().sum() / 4
        losses = torch.stack([truth.loss(m, own[m]) for m in range(4)])
        value = losses.mean() + method.lam / 2 * apart
        (slope,) = torch.autograd.grad(value, own)
        return value.item(), slope.flatten().numpy()

    best = minimize(
        pulled_together,
        np.zeros(16),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 1e-16, "gtol": 1e-10},
    )
    torch.testing.assert_close(betas, torch.from_numpy(best.x).view(4, -1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.w, 2 * betas.mean(0), rtol=1e-5, atol=1e-7)


# how fast ----------------------------------------------------------------------------------


def quadratics(kappa: float, clients: int = 4) -> Problem:
    """Three shared weights with curvatures 1/kappa .. 1, and one own weight with 1/M."""
    curvatures = torch.tensor([1 / kappa, kappa**-0.5, 1.0, 1 / clients], dtype=torch.float64)
    x = torch.diag((4 * curvatures).sqrt())
    g = torch.Generator().manual_seed(0)
    parts = [(x, x @ torch.randn(4, generator=g, dtype=torch.float64)) for _ in range(clients)]
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = ClientData(Examples.of(parts), Examples.of(parts), None)
    return Problem(model, data, batch_size=4, reshuffle=True, dtype=torch.float64)


def rounds_needed(method: Unified, kappa: float, seed: int = 0) -> int:
    fed = federation(quadratics(kappa), seed=seed)
    state = method.init(fed)
    y, x = fed.problem.data.train.y.view(4, 4), fed.problem.data.train.x.view(4, 4, 4)
    truths = torch.linalg.solve(x, y[..., None])[..., 0]
    best = truths[:, :3].mean(0)
    start = _distance(method, state, best)
    for number in range(1, 5000):
        fed.begin_round(number)
        method.round(fed, state)
        if _distance(method, state, best) < 1e-3 * start:
            return number
    raise AssertionError("never there")


def _distance(method: Unified, state: State, best: Tensor) -> float:
    return float((state.w / 2 - best).norm())


def test_twice_the_condition_number_takes_acd_root_two_and_lsgd_twice_the_rounds() -> None:
    given: dict[str, Any] = {"objective": "ws2", "shared_parts": "0:3"}

    def accelerated(kappa: float) -> float:
        method = ACD(**given, mu=1 / (4 * kappa), L_w=1 / 4, L_beta=1 / 16)
        return float(np.mean([rounds_needed(method, kappa, seed) for seed in range(3)]))

    def plain(kappa: float) -> int:
        return rounds_needed(LSGD(**given, rescale=True, lr=4.0, local_steps=1), kappa)

    assert 1.2 < accelerated(100) / accelerated(50) < 1.65
    assert 1.9 < plain(100) / plain(50) < 2.1
    assert accelerated(100) < plain(100) / 4
