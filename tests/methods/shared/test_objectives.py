"""The unified objectives: gradients, constants, models and parts, against plain formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkin.core.client import Client
from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods import ACD, LSGD
from fedkin.methods.own_objective import OwnObjective
from fedkin.methods.shared.formulas import square, times
from fedkin.methods.shared.objectives import OBJECTIVES as KNOWN
from fedkin.methods.shared.objectives import (
    Objective,
    Settings,
    constants,
    get_objective,
    objective,
    place,
)
from fedkin.models.branches import Branches
from fedkin.models.layout import Layout
from tests.helpers import blobs, federation, personal_models, run
from tests.methods.unified_truth import ALPHA, LAM, OBJECTIVES, RELAX, Truth, logistic


def gradients(client: Client, w: Tensor, beta: Tensor, **settings: Any) -> dict[str, Tensor]:
    f = OwnObjective(client, **settings)
    by_w, by_beta = f.grads(w, beta)
    return {"w": by_w, "beta": by_beta, "value": f.value(w, beta), "model": f.model(w, beta)}


def at_clients(truth: Truth, flat: Tensor, **changes: Any) -> dict[str, Tensor]:
    """The library's value, gradients and models of every client at a point."""
    fed = federation(truth.problem)
    settings = LSGD(**truth.settings()).asked(fed) | changes
    w, betas = flat[: truth.sizes[0]], flat[truth.sizes[0] :].view(truth.clients, -1)
    return fed.map(gradients, shared={"w": w}, each={"beta": betas}, **settings)


def random_point(truth: Truth) -> Tensor:
    return torch.randn(
        truth.dimension, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_values_and_gradients_are_those_of_the_plain_formula(name: str, rescale: bool) -> None:
    truth = Truth(logistic(), name, rescale)
    at = random_point(truth).requires_grad_()
    (slope,) = torch.autograd.grad(truth.value(at), at)
    found = at_clients(truth, at.detach())
    torch.testing.assert_close(found["value"].mean(), truth.value(at).detach())
    torch.testing.assert_close(found["w"].mean(0), slope[: truth.sizes[0]])
    torch.testing.assert_close(found["beta"].flatten() / truth.clients, slope[truth.sizes[0] :])


@pytest.fixture
def by_autograd() -> Iterator[None]:
    """Every closed objective under another name, left to autograd."""
    for name in OBJECTIVES:
        known = KNOWN[name]
        KNOWN[f"{name} by autograd"] = Objective(known.name, known.rule, known.rescaled, False)
    yield
    for name in OBJECTIVES:
        del KNOWN[f"{name} by autograd"]


@pytest.mark.usefixtures("by_autograd")
@pytest.mark.parametrize("name", OBJECTIVES)
def test_closed_forms_and_autograd_agree(name: str) -> None:
    truth = Truth(logistic(), name)
    point = random_point(truth)
    closed = at_clients(truth, point)
    general = at_clients(truth, point, objective=f"{name} by autograd")
    for key in ("w", "beta", "value", "model"):
        torch.testing.assert_close(closed[key], general[key])


@pytest.fixture
def soft_pull() -> Iterator[str]:
    @objective("soft-pull")
    def rule(loss: Any, w: Any, beta: Any, s: Settings) -> Any:
        return loss(beta) + s.lam * (1 + square(w - beta)).sqrt()

    yield "soft-pull"
    del KNOWN["soft-pull"]


def test_a_new_objective_is_one_function(soft_pull: str) -> None:
    truth = Truth(logistic(batch_size=12, reshuffle=True), "mx2")
    point = random_point(truth)
    found = at_clients(truth, point, objective=soft_pull)
    w, betas = (t.requires_grad_() for t in (point[:4].clone(), point[4:].view(4, 4).clone()))
    apart = (1 + (w / 2 - betas).square().sum(1)).sqrt()
    total = sum(truth.loss(m, betas[m]) for m in range(4)) + LAM * apart.sum()
    by_w, by_beta = torch.autograd.grad(total, (w, betas))
    torch.testing.assert_close(found["w"].sum(0), by_w)
    torch.testing.assert_close(found["beta"], by_beta)
    method = ACD(objective=soft_pull, lam=LAM, L_w=0.5, L_beta=0.5, mu=0.02)
    fed = federation(truth.problem)
    state = run(method, fed, 200)
    betas = personal_models(method, fed, state)
    pull = LAM * (state.w / 2 - betas) / (1 + (state.w / 2 - betas).square().sum(1, True)).sqrt()
    assert pull.mean(0).norm() < 1e-5  # the optimum: the pulls of all clients on w cancel


def maml_gradient(client: Client, w: Tensor, **settings: Any) -> dict[str, Tensor]:
    f, batch = OwnObjective(client, **settings), client.next_batch()
    return {"w": f.grad_w(w, client.initial, batch)}


def test_maml_differentiates_through_its_step() -> None:
    truth = Truth(logistic(batch_size=12, reshuffle=True), "traditional")
    fed = federation(truth.problem)
    w = torch.randn(4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    settings = LSGD(objective="maml", inner_lr=0.4).asked(fed)
    found = fed.map(maml_gradient, shared={"w": w}, **settings)
    for m in range(4):
        at = w.clone().requires_grad_()
        (inner,) = torch.autograd.grad(truth.loss(m, at), at, create_graph=True)
        (slope,) = torch.autograd.grad(truth.loss(m, at - 0.4 * inner), at)
        torch.testing.assert_close(found["w"][m], slope)


# constants -------------------------------------------------------------------------------


def known_constants(truth: Truth, smooth: float, convex: float) -> Any:
    scale = truth.clients**-0.5 if truth.rescale else 1.0
    settings = {k: v for k, v in truth.settings().items() if k not in ("objective", "rescale")}
    own = Settings(truth.problem.layout, scale=scale, **settings)
    return constants(truth.objective, own, truth.clients, smooth, convex)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_hessian_lies_within_the_stated_constants(name: str, rescale: bool, seed: int) -> None:
    problem = logistic(clients=3, samples=5, l2=0.05 + 0.4 * seed, seed=seed)
    truth = Truth(problem, name, rescale)
    smooth = float(problem.data.train.x.square().sum(1).max()) / 4 + problem.l2
    known = known_constants(truth, smooth, problem.l2)
    for far in (0.0, 1.0, 10.0):
        hessian = torch.autograd.functional.hessian(truth.value, far * random_point(truth))
        w = truth.sizes[0]
        assert torch.linalg.eigvalsh(hessian).min() >= known.mu - 1e-12
        if w:
            assert torch.linalg.eigvalsh(hessian[:w, :w]).max() <= known.L_w + 1e-12
        if truth.sizes[1]:
            assert torch.linalg.eigvalsh(hessian[w:, w:]).max() <= known.L_beta + 1e-12


def test_constants_are_the_published_ones() -> None:
    M, L, mu, mixed = 5, 2.0, 0.25, (1 - ALPHA) ** 2
    problem = logistic(clients=M)
    published = {
        "traditional": (L, 0, mu),
        "personal": (0, L / M, mu / M),
        "mt2": ((RELAX * L + LAM) / M, (L + LAM) / M, None),
        "mx2": (LAM / M, (L + LAM) / M, mu / (3 * M)),
        "apfl2": ((RELAX + ALPHA**2) * L / M, mixed * L / M, mixed * mu / (2 * M)),
        "ws2": (L / M, L / M, mu / M),
    }  # fmt: skip
    for name, (by_w, by_beta, least) in published.items():
        known = known_constants(Truth(problem, name), L, mu)
        assert known.L_w == pytest.approx(by_w)
        assert known.L_beta == pytest.approx(by_beta)
        if name in ("traditional", "personal", "ws2"):
            assert known.mu == pytest.approx(least)
        elif least is not None:
            assert known.mu >= least
    # MT2's lam/(2M) holds where Lambda >= 3*lam/(2*mu')
    own = Settings(problem.layout, lam=LAM, relax=3 * LAM / (2 * mu), scale=M**-0.5)
    assert constants("mt2", own, M, L, mu).mu >= LAM / (2 * M)


def test_objectives_without_constants_say_so() -> None:
    with pytest.raises(FedkinError, match="give L_w, L_beta and mu, or use lsgd"):
        run(ACD(objective="maml"), federation(logistic()), 1)


# models and parts ------------------------------------------------------------------------


@pytest.mark.parametrize("rescale", [True, False])
def test_a_client_uses_the_model_of_the_last_loss(rescale: bool) -> None:
    scale, zeros = 0.5 if rescale else 1.0, torch.zeros(4, 2, dtype=torch.float64)
    problem = logistic()
    for name in OBJECTIVES:
        truth = Truth(problem, name, rescale)
        point = random_point(truth)
        w, betas = point[: truth.sizes[0]], point[truth.sizes[0] :].view(4, -1)
        expected = {
            "traditional": lambda w, b: w.expand(4, -1),
            "apfl2": lambda w, b: (1 - ALPHA) * b + ALPHA * scale * w,
            "ws2": lambda w, b: torch.cat([(scale * w).expand(4, -1), b], 1),
            "residual": lambda w, b: (
                torch.cat([(scale * w).expand(4, -1), zeros[:, :1]], 1) + torch.cat([zeros, b], 1)
            ),
        }.get(name, lambda w, b: b)
        found = at_clients(truth, point)["model"]
        torch.testing.assert_close(found, expected(w, betas))


def test_every_optimiser_starts_at_the_initial_model() -> None:
    problem = Problem(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), blobs())
    fed = federation(problem)
    for name in ("traditional", "personal", "mt2", "mx2", "apfl2", "ws2", "maml"):
        method = LSGD(objective=name, w_share=0.3, inner_lr=0.0)
        models = personal_models(method, fed, method.init(fed))
        torch.testing.assert_close(models, problem.initial.expand_as(models))


def test_beta_alone_can_be_judged_where_it_is_a_model() -> None:
    fed = federation(logistic())
    mixed, alone = (LSGD(objective="apfl2", w_share=0.4, beta_only=b) for b in (False, True))
    state = run(alone, fed, 3)
    betas, mixes = personal_models(alone, fed, state), personal_models(mixed, fed, state)
    torch.testing.assert_close(mixes, 0.6 * betas + 0.4 * alone.global_model(state))
    partly = LSGD(objective="ws2", shared_parts="0:2", beta_only=True)
    for without in (partly, LSGD(objective="maml", beta_only=True)):
        with pytest.raises(FedkinError, match="beta alone is not a model"):
            without.init(fed)


def test_parts_go_by_names_and_by_features() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)))
    assert place(layout, "2.").index.tolist() == list(range(8, 14))
    assert place(layout, "0.bias,2.bias").index.tolist() == [6, 7, 12, 13]
    assert place(layout, "1:3").index.tolist() == [1, 2, 4, 5]
    assert place(layout, "2.").rest().index.tolist() == list(range(8))
    assert place(layout, "").index.tolist() == list(range(14))
    for wrong, words in (
        ("4.weight", "part of the model"),
        ("7:9", "has 3"),
        ("a:b", "write 0:10"),
    ):
        with pytest.raises(FedkinError, match=words):
            place(layout, wrong)


def test_weight_sharing_shares_all_but_the_last_layer_unless_told_otherwise() -> None:
    problem = Problem(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), blobs())
    fed = federation(problem)
    method = LSGD(objective="ws2", lr=0.1)
    state = run(method, fed, 2)
    models = personal_models(method, fed, state)
    assert len(state.w) == 24
    assert (models[:, :24] == models[:1, :24]).all()
    assert (models[0, 24:] != models[1, 24:]).all()
    assert method.global_model(state) is None
    with pytest.raises(FedkinError, match="single layer"):
        LSGD(objective="ws2").init(federation(logistic()))


def test_residual_models_that_do_not_add_outputs_are_refused() -> None:
    problem = Problem(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), blobs())
    with pytest.raises(FedkinError, match=r"fedkin\.models\.Branches"):
        LSGD(objective="residual").init(federation(problem))


def test_two_networks_side_by_side_make_a_residual_model() -> None:
    torch.manual_seed(0)
    shared = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    model = Branches(shared, nn.Linear(5, 3), shared_features=slice(0, 2))
    problem = Problem(model, blobs(), batch_size=64, reshuffle=True)
    fed = federation(problem)
    method = LSGD(
        objective="residual", shared_parts="shared.", own_parts="own.", lr=0.1, local_steps=1
    )
    state = run(method, fed, 1)
    models = personal_models(method, fed, state)
    for i in (0, 3):
        copy = problem.module(problem.initial[0])
        x, y = problem.data.train[i]
        torch.testing.assert_close(copy(x), shared(x[:, :2]) + model.own(x))
        nn.functional.cross_entropy(copy(x), y).backward()
        torch.testing.assert_close(models[i, -3:], copy.own.bias - 0.1 * copy.own.bias.grad)
    assert len(state.w) == 27


def test_unknown_objectives_are_answered_with_the_nearest() -> None:
    with pytest.raises(FedkinError, match="did you mean 'mx2'"):
        LSGD(objective="mx")
    assert get_objective("mx2").name == "mx2"


@pytest.mark.parametrize("c", [1.0, -1.0, 2.0, -2.0, 0.5])
def test_a_number_times_rows_is_that_many_times_them(c: float) -> None:
    rows = torch.tensor([[1.0, -3.0], [0.0, 7.0]])
    assert times(c, rows).tolist() == [[c, -3 * c], [0.0, 7 * c]]
