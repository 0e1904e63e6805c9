"""Rounds of the unified optimisers against their rules worked out iteration by iteration."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.errors import FedkinError
from fedkin.methods import ACD, ASCD, ASVRCD, LSGD, SCD, SVRCD, State
from fedkin.methods.coordinate import Coordinate
from fedkin.methods.svrcd import take_estimate, take_snapshot
from tests.helpers import federation, personal_models, run
from tests.methods.unified_truth import Truth, logistic

M = 3


class Spy(Federation):
    """Notes every request of a run: its step and how many beta steps it holds."""

    def mean(self, step: Any, *args: Any, **hyper: Any) -> Any:
        if not hasattr(self, "seen"):
            self.seen: list[tuple[str, int]] = []
        self.seen.append((step.__name__, hyper.get("steps", 0)))
        return super().mean(step, *args, **hyper)


def one_sample_each(name: str, copies: int = 1) -> Truth:
    """Every client has one sample (or copies of it): minibatch gradients are full ones."""
    problem = logistic(clients=M, samples=copies, dimension=3, l2=0.3)
    for rows in (problem.train.x, problem.train.y, problem.data.train.x, problem.data.train.y):
        rows.copy_(rows[::copies].repeat_interleave(copies, 0))
    return Truth(problem, name)


def gradient(truth: Truth, flat: Tensor) -> Tensor:
    at = flat.clone().requires_grad_()
    (slope,) = torch.autograd.grad(truth.value(at), at)
    return slope


def follow(
    method: Coordinate, truth: Truth, rounds: int
) -> tuple[State, Tensor, list[tuple[str, int]]]:
    """The library's rounds: state, (w, beta_1..M) in one vector, and the requests made."""
    plain = federation(truth.problem)
    fed = Spy(truth.problem, plain.engine)
    state = run(method, fed, rounds)
    if truth.sizes[1] == truth.problem.size:
        method.beta_only = True
        betas = personal_models(method, fed, state)
    else:
        betas = personal_models(method, fed, state)[:, -truth.sizes[1] :]
    return state, torch.cat([state.w, betas.flatten()]), fed.seen


def coins(seen: list[tuple[str, int]]) -> list[str]:
    """The blocks that the iterations of these requests step."""
    return [block for _, steps in seen for block in ["beta"] * steps + ["w"]]


def mask(truth: Truth, block: str) -> Tensor:
    """1 on the coordinates of a block."""
    by_w = torch.arange(truth.dimension) < truth.sizes[0]
    return (by_w if block == "w" else ~by_w).double()


@pytest.mark.parametrize("name", ["mx2", "mt2", "apfl2", "ws2"])
def test_scd_steps_one_block_at_a_time(name: str) -> None:
    truth = one_sample_each(name)
    s, found, seen = follow(SCD(**truth.settings()), truth, 6)
    p = {"w": s.L_w / (s.L_w + s.L_beta), "beta": s.L_beta / (s.L_w + s.L_beta)}
    eta = 1 / (8 * max(s.L_w / p["w"], s.L_beta / p["beta"]))
    y = torch.zeros(truth.dimension, dtype=torch.float64)
    for block in coins(seen):
        y = y - eta / p[block] * mask(truth, block) * gradient(truth, y)
    torch.testing.assert_close(found, y)


@pytest.mark.parametrize("name", ["mx2", "mt2", "apfl2", "ws2"])
@pytest.mark.parametrize("samples", [1, 20])
def test_ascd_takes_gamma_and_nu_from_asvrcd_and_keeps_the_other_block(
    name: str, samples: int
) -> None:
    truth = one_sample_each(name, copies=samples)
    s, found, seen = follow(ASCD(**truth.settings()), truth, 6)
    total = s.L_w + s.L_beta
    p, eta = {"w": s.L_w / total, "beta": s.L_beta / total}, 1 / (8 * total)
    theta = min(0.8, 1 / eta)
    rho = p["w"] / samples
    th1 = min(0.5, sqrt(eta * s.mu * max(0.5, 0.5 / rho)))
    gamma = 1 / max(2 * s.mu, 4 * th1 / eta)
    nu = 1 - gamma * s.mu
    y = z = torch.zeros(truth.dimension, dtype=torch.float64)
    for block in coins(seen):
        x = theta * z + (1 - theta) * y
        new = x - eta / p[block] * gradient(truth, x)
        moved = nu * z + (1 - nu) * x + gamma / eta * (new - x)
        sampled = mask(truth, block) > 0
        y, z = torch.where(sampled, new, y), torch.where(sampled, moved, z)
    torch.testing.assert_close(found, y)


@pytest.mark.parametrize("p_w", [None, 0.6])
@pytest.mark.parametrize("name", ["mx2", "mt2", "apfl2", "ws2"])
def test_acd_moves_the_other_block_without_a_gradient(name: str, p_w: float | None) -> None:
    truth = one_sample_each(name)
    s, found, seen = follow(ACD(**truth.settings(), p_w=p_w), truth, 6)
    L = {"w": s.L_w, "beta": s.L_beta}
    roots = sqrt(s.L_w) + sqrt(s.L_beta)
    p = {b: sqrt(L[b]) / roots if p_w is None else abs((b == "beta") - p_w) for b in L}
    nu = s.mu / roots**2 if p_w is None else s.mu * min(p[b] ** 2 / L[b] for b in L)
    theta = (sqrt(nu**2 + 4 * nu) - nu) / 2
    eta = 1 / theta
    y = z = torch.zeros(truth.dimension, dtype=torch.float64)
    for block in coins(seen):
        x = (1 - theta) * y + theta * z
        g = mask(truth, block) * gradient(truth, x)
        y = x - g / L[block]
        z = (z + eta * nu * x - eta * p[block] / L[block] * g) / (1 + eta * nu)
    torch.testing.assert_close(found, y)


@pytest.mark.parametrize("name", ["mx2", "mt2", "apfl2", "ws2"])
@pytest.mark.parametrize("cls", [SVRCD, ASVRCD])
def test_variance_reduced_rounds_follow_their_rule(cls: type[SVRCD], name: str) -> None:
    truth = one_sample_each(name)
    s, found, seen = follow(cls(**truth.settings(), rho=0.3), truth, 14)
    assert seen[0] == ("take_snapshot", 0)
    assert len({request[0] for request in seen[1:]}) == 2
    total, rho = s.L_w + s.L_beta, 0.3
    p, eta = {"w": s.L_w / total, "beta": s.L_beta / total}, 1 / (8 * total)
    th1, th2 = min(0.5, sqrt(eta * s.mu * max(0.5, 0.5 / rho))), 0.5
    gamma = 1 / max(2 * s.mu, 4 * th1 / eta)
    nu = 1 - gamma * s.mu
    if cls is SVRCD:
        th1 = th2 = 0.0
    y = z = v = before = torch.zeros(truth.dimension, dtype=torch.float64)
    for step, steps in seen:
        for block in ["beta"] * steps + ["w"] * (step == "take_estimate"):
            x = th1 * z + th2 * v + (1 - th1 - th2) * y
            full = gradient(truth, v)
            g = mask(truth, block) / p[block] * (gradient(truth, x) - full) + full
            before, y = y, x - eta * g
            z = nu * z + (1 - nu) * x + gamma / eta * (y - x)
        if step == "take_snapshot":
            v = before
    torch.testing.assert_close(found, y)


def test_an_lsgd_round_averages_w_and_leaves_beta_alone() -> None:
    truth = one_sample_each("mx2")
    fed, method = federation(truth.problem), LSGD(**truth.settings(), lr=0.1, local_steps=2)
    state = run(method, fed, 2)
    w, betas = (torch.zeros(M, 3, dtype=torch.float64) for _ in range(2))
    for _ in range(2):
        for _ in range(2):
            for m in range(M):
                at, own = (t[m].clone().requires_grad_() for t in (w, betas))
                by_w, by_beta = torch.autograd.grad(truth.own(m, at, own), (at, own))
                w[m], betas[m] = w[m] - 0.1 * by_w, betas[m] - 0.1 * by_beta
        w = w.mean(0).expand(M, -1).clone()
    torch.testing.assert_close(state.w, w[0])
    torch.testing.assert_close(personal_models(method, fed, state), betas)


# estimates -------------------------------------------------------------------------------


def kept_beta(client: Client, start: Tensor) -> dict[str, Tensor]:
    return {"beta": client.recall("beta", start)}


@pytest.mark.parametrize("cls", [SVRCD, ASVRCD])
@pytest.mark.parametrize("name", ["mx2", "apfl2", "ws2"])
def test_estimates_are_the_gradient_on_average(cls: type[SVRCD], name: str) -> None:
    """4,000 clients with the same five samples: a mean over them is a mean over draws."""
    many = logistic(clients=4000, samples=5, dimension=3, l2=0.1)
    for rows in (many.train.x, many.train.y):
        rows.copy_(torch.cat([rows[:5]] * 4000))
    truth = Truth(many, name)
    method, fed = cls(**truth.settings(), mu=0.1, L_w=1.0, L_beta=1.0), federation(many)
    s, p, eta = method.init(fed), 0.5, 0.125
    t = {"eta": eta, "weight": 1 / (4000 * p)} | method.tuning(s, eta, 0.1)
    hyper = {**t, **method.asked(fed)}
    zero = torch.zeros(sum(truth.sizes), dtype=torch.float64)

    def slope(at: Tensor) -> tuple[Tensor, Tensor]:
        w, beta = (part.clone().requires_grad_() for part in at.split(truth.sizes))
        return torch.autograd.grad(truth.own(0, w, beta), (w, beta), allow_unused=True)

    def request(step: Any, number: int, y: Tensor, **more: Any) -> Any:
        fed.begin_round(number)
        sent = {"y": y, "g": s.g} | ({"z": y} if cls is ASVRCD else {}) | more.pop("sent", {})
        return fed.map(step, shared=sent, **more, **hyper)

    first = request(take_snapshot, 1, s.w, sent={"before": s.w}, steps=0, share=1 / 4000)
    s.g = first["dg"].mean(0)
    torch.testing.assert_close(s.g, slope(zero)[0])

    y = torch.randn(truth.sizes[0], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x = torch.cat([(1 - t["th2"]) * y, zero[truth.sizes[0] :]])  # v and all beta are zero
    by_w = p * (request(take_estimate, 2, y, steps=0)["g"] / p + s.g) + (1 - p) * s.g
    assert_mean(by_w, slope(x)[0])

    fed.engine.memory.tables.clear()
    fed.engine.memory.known.clear()
    request(take_snapshot, 1, s.w, sent={"before": s.w}, steps=0, share=1 / 4000)
    request(take_snapshot, 3, y, sent={"before": s.w}, steps=1, share=1 / 4000)
    moved = fed.look(fed.request(kept_beta, shared={"start": zero[truth.sizes[0] :]}))["beta"]
    known = slope(zero)[1] / 4000
    by_beta = p * (moved / -eta - known) + known
    assert_mean(4000 * by_beta, slope(x)[1])


def assert_mean(rows: Tensor, expected: Tensor) -> None:
    """Within four standard errors."""
    error = rows.std(0) / len(rows) ** 0.5
    assert ((rows.mean(0) - expected).abs() <= 4 * error + 1e-9).all()


# communication -----------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [SCD, ASCD, ACD, SVRCD, ASVRCD])
def test_a_round_is_one_request_with_one_gradient_of_w_sent_back(cls: type[Coordinate]) -> None:
    truth = Truth(logistic(), "ws2")
    fed = Spy(truth.problem, federation(truth.problem).engine)
    method = cls(**truth.settings())
    method.init(fed)
    before = fed.accounts.table.clone()
    run(method, fed, 20)
    assert len(fed.seen) == 20
    sent = fed.accounts.column("bytes_up") - before[:, 1] - 8  # 8 for the clients' L'
    assert sent.tolist() == [20 * 2 * 8] * 4  # two shared weights of 8 bytes


def test_stretches_are_as_long_as_the_coin_says() -> None:
    problem = logistic()
    for p_w in (0.1, 0.5):
        fed = Spy(problem, federation(problem).engine)
        run(SCD(p_w=p_w), fed, 400)
        steps = torch.tensor([float(steps) for _, steps in fed.seen])
        assert abs(steps.mean() - (1 / p_w - 1)) < 4 * sqrt(1 - p_w) / p_w / 20
        # the mixture's gradient by w needs no gradient of a loss
        assert fed.accounts.column("gradients").tolist() == [int(steps.sum())] * 4


def test_an_objective_that_shares_nothing_needs_a_chance_of_meeting() -> None:
    fed = federation(logistic())
    with pytest.raises(FedkinError, match="shares nothing"):
        run(ASCD(objective="personal"), fed, 1)
    method = ASVRCD(objective="personal", p_w=0.2)
    state = run(method, fed, 3)
    assert state.w.numel() == 0


def test_the_objective_is_recorded_when_asked_for() -> None:
    truth = Truth(logistic(), "mt2")
    fed, method = federation(truth.problem), ACD(**truth.settings(), record_every=2)
    state = method.init(fed)
    for number in (1, 2):
        fed.begin_round(number)
        method.round(fed, state)
        assert fed.records == ({} if number == 1 else {"objective": method.value(fed, state)})
