"""PERM against rounds by hand, against optima found otherwise, and when things go wrong."""

import math

import pytest
import torch
from torch import nn

from fedkin.core.problem import Problem
from fedkin.methods import FedAvg, Local, PermPrinted, PermTwoStage
from fedkin.methods.shared import mixing
from fedkin.methods.shared.theory import perm_steps
from tests.helpers import (
    blobs,
    federation,
    further,
    least_squares,
    personal_models,
    quadratic,
    run,
)
from tests.methods.truth import weighted_objective, weighted_optimum

both = pytest.mark.parametrize("method", [PermPrinted, PermTwoStage])
EQUAL_WEIGHTS, OWN_WEIGHT = {"lam": 1e12}, {"lam": 0.0}
AS_IN_THE_PAPER = {"schedule": "cyclic", "step_limit": "none"}
PACKED = {"schedule": "packed", "step_limit": 4.0}


def logistic(seed=3):
    """Strongly convex classification with full batches, different for every client."""
    data = blobs(clients=4, samples=20, dimension=3, seed=seed)
    turned = torch.tensor([1.0, -1.0, 1.0, -1.0]).repeat_interleave(data.train.sizes)
    data.train.x.mul_(turned[:, None] / 4)
    options = {"l2": 0.3, "batch_size": 1000, "reshuffle": True, "dtype": torch.float64}
    module = nn.Linear(3, 3)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return Problem(module, data, **options)


# one round ---------------------------------------------------------------------------------


def test_a_single_loop_round_by_hand():
    # f_1 = (v - 1)^2/2 and f_2 = (2v + 2)^2/2: gradients v - 1 and 4v + 4, here at w = 0.5
    lr, gamma, lam = 0.01, 0.1, 50.0
    method = PermPrinted(lr=lr, local_steps=2, warm_up=0, gamma=gamma, lam=lam, **AS_IN_THE_PAPER)
    state = run(method, federation(quadratic([1.0, 2.0], [1.0, -2.0], start=0.5)), 1)
    gradients = [lambda v: v - 1, lambda v: 4 * v + 4]
    g = [gradient(0.5) for gradient in gradients]
    assert state.x.item() == pytest.approx(0.5 - gamma * sum(g) / 2)
    own = ((g[0] - g[1]) ** 2 / (2 * lam) + 1) / 2  # n_1 = n_2 = 1
    assert 0.5 < own < 1
    alpha = torch.tensor([[own, 1 - own], [1 - own, own]], dtype=torch.float64)
    torch.testing.assert_close(state.alpha, alpha)
    for model, host in enumerate(state.plan[0].tolist()):
        v = 0.5
        for _ in range(2):
            v = v - lr * 2 * alpha[model, host].item() * gradients[host](v)
        assert state.v[model].item() == pytest.approx(v)


def test_two_stages_are_fedavg_then_visits_with_the_weights_at_its_model():
    problem, work = least_squares(seed=1), {"lr": 0.1, "local_steps": 3}
    method, fed = PermTwoStage(warm_up=4, **work), federation(problem)
    state = run(method, fed, 4)
    fedavg = run(FedAvg(**work), federation(problem), 4)
    torch.testing.assert_close(state.x, fedavg.x)
    torch.testing.assert_close(personal_models(method, fed, state), state.x.expand(4, -1))
    further(method, fed, state, 3)
    torch.testing.assert_close(state.x, fedavg.x)
    x, y = problem.data.train.x.view(4, 8, 3), problem.data.train.y.view(4, 8)
    g = torch.einsum("nsd,ns->nd", x, x @ state.x - y) / 8
    z = torch.cdist(g, g) ** 2
    lam = z[~torch.eye(4, dtype=torch.bool)].median() * 8
    torch.testing.assert_close(state.alpha, mixing.simplex_weights(z, fed.samples, float(lam)))


def test_step_limit_shortens_all_steps_of_a_model_alike():
    def first_round(**options):
        method = PermPrinted(
            lr=0.01, local_steps=1, warm_up=0, schedule="cyclic", lam=50.0, **options
        )
        state = run(method, federation(least_squares(seed=2)), 1)
        return state.v - federation(least_squares(seed=2)).initial_model(), state.alpha

    free, alpha = first_round(step_limit=1e9)
    limited, _ = first_round(step_limit=1.85)
    shorter = 1.85 / (4 * alpha.amax(1, keepdim=True))
    assert free.abs().sum(1).all()
    assert sorted((shorter[:, 0] < 1).tolist()) == [False, False, True, True]
    torch.testing.assert_close(limited, free * shorter.clamp(max=1))


@both
def test_weights_by_few_projected_gradient_steps_say_how_far_they_are(method):
    fed, options = federation(logistic()), {"warm_up": 0}  # clients of 20 to 23 samples
    state = run(method(solver="projected-gradient", solver_steps=1, **options), fed, 1)
    exact = run(method(**options), federation(logistic()), 1).alpha
    error = float((state.alpha - exact).abs().max())
    assert error > 1e-4
    assert float(fed.records["weights_error"]) == pytest.approx(error)
    converged = run(method(solver="projected-gradient", **options), fed, 1)
    torch.testing.assert_close(converged.alpha, exact, rtol=0, atol=1e-7)


def test_visits_may_have_a_step_size_of_their_own():
    # by equation 3's 1/N a step is eta*alpha: that is eta/N on visits, and eta in the warm-up
    options = {"local_steps": 2, "warm_up": 2, "lam": 50.0, **AS_IN_THE_PAPER}
    fed = federation(least_squares(seed=1))
    method = PermPrinted(lr=0.1, visit_lr=0.1 / 4, **options)
    state = run(method, fed, 2)
    torch.testing.assert_close(state.x, run(FedAvg(lr=0.1, local_steps=2), federation(
        least_squares(seed=1)), 2).x)  # fmt: skip
    start = state.x.clone()
    further(method, fed, state, 1)
    x, y = (t.view(4, 8, -1) for t in (fed.problem.data.train.x, fed.problem.data.train.y))
    for model, host in enumerate(state.plan[0].tolist()):
        v = start.clone()
        for _ in range(2):
            slope = x[host].T @ (x[host] @ v - y[host, :, 0]) / 8
            v = v - 0.1 * state.alpha[model, host] * slope
        torch.testing.assert_close(state.v[model], v)


# what it converges to ----------------------------------------------------------------------


@both
@pytest.mark.parametrize("problem", [least_squares(samples=40, seed=1), logistic()])
def test_shuffled_models_reach_the_optimum_of_their_weighted_objective(method, problem):
    # A model's place within an epoch biases it by about eta times the hosts' gradients at the
    # optimum, so the steps must shrink: eta = 1/(1 + epoch/2) leaves less than 1% of the way.
    chosen = method(lr=1.0, local_steps=1, warm_up=10, lam_rel=0.7, decay=0.5, **PACKED)
    state = run(chosen, federation(problem), 400)
    assert ((state.alpha > 0).sum(1) > 1).any()
    for i in range(4):
        best = weighted_optimum(problem, state.alpha[i])
        assert (state.v[i] - best).norm() < 0.01 * best.norm()
        models = (torch.zeros_like(best), state.v[i], best)
        start, end, least = (weighted_objective(problem, state.alpha[i], v) for v in models)
        assert end - least < 1e-4 * (start - least)


@both
def test_constant_steps_suffice_when_helpers_agree(method):
    # two groups of three clients with one true model each and no noise
    problem = least_squares(clients=6, samples=40, seed=4)
    truth = torch.randn(2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    own = truth.repeat_interleave(3, 0)
    problem.train.y.copy_((problem.train.x.view(6, 40, 3) * own[:, None]).sum(2).flatten())
    chosen = method(lr=0.1, local_steps=2, warm_up=3, lam_rel=0.3)
    state = run(chosen, federation(problem), 200)
    assert state.alpha[:3, 3:].sum() == state.alpha[3:, :3].sum() == 0
    torch.testing.assert_close(state.v, own, rtol=0, atol=1e-8)


@pytest.mark.parametrize("schedule", ["packed", "cyclic"])
def test_equal_weights_optimise_the_objective_of_fedavg(schedule):
    problem = least_squares(samples=40, seed=1)
    method = PermPrinted(
        lr=0.5, local_steps=1, warm_up=0, decay=0.5, schedule=schedule, **EQUAL_WEIGHTS
    )
    state = run(method, federation(problem), 400)
    torch.testing.assert_close(state.alpha, torch.full_like(state.alpha, 1 / 4))
    best = weighted_optimum(problem, [1 / 4] * 4)
    assert ((state.v - best).norm(dim=1) < 0.01 * best.norm()).all()


def test_weight_on_oneself_only_is_local_training():
    problem = least_squares()
    local, fed = Local(lr=0.05, local_steps=3), federation(problem)
    alone = personal_models(local, fed, run(local, fed, 6))
    packed = PermPrinted(lr=0.05, local_steps=3, warm_up=0, **PACKED, **OWN_WEIGHT)
    torch.testing.assert_close(run(packed, federation(problem), 6).v, alone)
    # as the paper has it, one visit in N = 4 rounds with steps of N*lr
    cyclic = PermPrinted(lr=0.05 / 4, local_steps=3, warm_up=0, **AS_IN_THE_PAPER, **OWN_WEIGHT)
    torch.testing.assert_close(run(cyclic, federation(problem), 24).v, alone)


def test_polish_steps_go_down_the_weighted_objective():
    problem = least_squares(samples=40, seed=1)
    method, fed = PermTwoStage(lr=0.1, warm_up=2, lam_rel=0.7, polish=0.5), federation(problem)
    state = run(method, fed, 5)
    before = state.v.clone()
    method.finish(fed, state)
    for i in range(4):
        at = before[i].requires_grad_()
        slope = torch.autograd.grad(weighted_objective(problem, state.alpha[i], at), at)[0]
        torch.testing.assert_close(state.final[i], (at - 0.5 * slope).detach())
    torch.testing.assert_close(personal_models(method, fed, state), state.final)
    assert torch.equal(state.v, before)
    further(method, fed, state, 1)
    torch.testing.assert_close(personal_models(method, fed, state), state.v)
    for _ in range(60):
        state.v = state.final
        method.finish(fed, state)
    best = torch.stack([weighted_optimum(problem, row) for row in state.alpha])
    torch.testing.assert_close(state.final, best, rtol=0, atol=1e-6)


def test_models_stay_in_the_ball():
    method = PermPrinted(lr=0.1, warm_up=0, radius=0.15, **PACKED, **OWN_WEIGHT)
    problem = least_squares()
    norms = run(method, federation(problem), 30).v.norm(dim=1)
    torch.testing.assert_close(norms, torch.full_like(norms, 0.15))
    inside = PermPrinted(lr=0.1, warm_up=0, radius=1e6, **OWN_WEIGHT)
    free = PermPrinted(lr=0.1, warm_up=0, **OWN_WEIGHT)
    assert torch.equal(run(inside, federation(problem), 5).v, run(free, federation(problem), 5).v)


def test_the_theorems_steps_bring_models_to_the_optimum_of_their_weighted_objective():
    problem, epochs = least_squares(samples=40, seed=1), 60
    x = problem.data.train.x.view(4, 40, 3)
    curvature = torch.linalg.eigvalsh(x.transpose(1, 2) @ x / 40)
    smooth, convex = float(curvature.max()), float(curvature.min())
    steps = perm_steps(smooth, convex, clients=4, local_steps=2, epochs=epochs)
    assert steps["lr"] == pytest.approx(
        min(math.log(8 * epochs**3) / (convex * 8 * epochs), 1 / (8 * smooth))
    )
    method, fed = PermPrinted(warm_up=0, lam_rel=0.7, **steps), federation(problem)
    state = run(method, fed, 4 * epochs)
    method.finish(fed, state)
    for i in range(4):
        best = weighted_optimum(problem, state.alpha[i])
        least, end, start = (weighted_objective(problem, state.alpha[i], v)
                             for v in (best, state.final[i], torch.zeros_like(best)))  # fmt: skip
        assert end - least < 1e-3 * (start - least)


# what it costs -----------------------------------------------------------------------------


def test_visits_of_weight_zero_cost_nothing():
    clients, steps = 6, 3
    options = {"local_steps": steps, "warm_up": 0, "schedule": "cyclic"}

    def cost(**weights):
        fed = federation(least_squares(clients=clients))
        run(PermPrinted(**options, **weights), fed, clients)
        return fed.accounts.total("gradients"), fed.accounts.total("bytes_down")

    model = 3 * 8  # bytes
    assert cost(**EQUAL_WEIGHTS) == (
        clients + clients * clients * steps,
        clients * model + clients * clients * (model + 8),
    )
    assert cost(**OWN_WEIGHT) == (
        clients + clients * steps,
        clients * model + clients * (model + 8),
    )


def test_a_single_loop_round_sends_twice_what_fedavg_sends():
    problem = least_squares()
    one, two = federation(problem), federation(problem)
    run(FedAvg(), one, 3)
    run(PermPrinted(warm_up=0, refresh="round", **EQUAL_WEIGHTS), two, 3)
    assert two.accounts.total("bytes_up") == 2 * one.accounts.total("bytes_up")
    weights = 3 * 4 * 8  # the number N*alpha_i(c) that comes with every visitor
    assert two.accounts.total("bytes_down") == 2 * one.accounts.total("bytes_down") + weights


def test_packed_epochs_leave_no_client_idle_when_groups_are_of_one_size():
    problem = least_squares(clients=6, samples=12, seed=4)
    problem.train.y[:36].neg_()
    for schedule, rounds in (("packed", 3), ("cyclic", 6)):
        method, fed = PermTwoStage(warm_up=0, schedule=schedule), federation(problem)
        state = method.init(fed)
        wanted = torch.block_diag(*[torch.full((3, 3), 1 / 3)] * 2).double()
        further(method, fed, state, 1)
        state.alpha, state.hop = wanted, len(state.plan)
        further(method, fed, state, 1)
        assert len(state.plan) == rounds
        assert fed.records["visits"] == (6 if schedule == "packed" else (state.plan[0] >= 0).sum())


def test_two_stages_send_sketches_of_gradients_and_find_like_weights():
    problem = Problem(nn.Linear(400, 3), blobs(clients=8, dimension=400), dtype=torch.float64)
    whole, small = (PermTwoStage(warm_up=0, sketch=size, lam_rel=2.0) for size in (None, 300))
    a, b = federation(problem), federation(problem)
    first, second = run(whole, a, 1), run(small, b, 1)
    visits = [int(fed.records["visits"]) for fed in (a, b)]
    sent = [fed.accounts.total("bytes_up") for fed in (a, b)]
    assert sent[1] - visits[1] * problem.size * 8 == 8 * 300 * 8
    assert sent[0] - visits[0] * problem.size * 8 == 8 * problem.size * 8
    assert (first.alpha - second.alpha).abs().max() < 0.05
    kept = run(PermPrinted(warm_up=0, sketch=300, lam_rel=2.0), federation(problem), 1)
    torch.testing.assert_close(kept.alpha, second.alpha)


@both
def test_steps_shrink_from_the_second_epoch_on(method):
    # one client alone: T = 1 and alpha = 1, so epoch e is one step of lr/(1 + decay*(e - 1))
    made = method(lr=0.1, local_steps=1, warm_up=0, decay=0.5)
    state, v = run(made, federation(quadratic([2.0], [3.0], start=0.5)), 3), 0.5
    for epoch in (1, 2, 3):
        v -= 0.1 / (1 + 0.5 * (epoch - 1)) * 2 * (2 * v - 3)
    assert state.v.item() == pytest.approx(v, abs=1e-12)


def test_a_newcomers_steps_are_limited_by_its_largest_weight():
    # a visit's step is lr*T*alpha(c), all of a model's shortened alike so that none exceeds
    # step_limit*lr: by T*max_c alpha(c)/step_limit
    fed, new = (federation(quadratic([1.0] * n, [2.0] * n)) for n in (2, 1))
    alpha = torch.tensor([[0.2, 0.1, 0.7]], dtype=torch.float64)  # two hosts, and oneself
    v = torch.zeros(1, 1, dtype=torch.float64)
    for limit, length in ((1e9, 3 * 0.2), (1.0, 0.2 / 0.7)):
        moved = PermPrinted(lr=0.1, local_steps=1, step_limit=limit).tour(
            fed, new, v, torch.tensor([0]), alpha, 0
        )
        assert moved.item() == pytest.approx(0.1 * length * 2.0, abs=1e-12)


def test_a_newcomers_steps_shrink_from_its_second_epoch_on():
    # all weight on oneself: epoch e = 0, 1, ... is one step of lr/(1 + decay*e)
    fed, new = (federation(quadratic([1.0] * n, [2.0] * n)) for n in (2, 1))
    alpha, home = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64), torch.tensor([2])
    v = torch.zeros(1, 1, dtype=torch.float64)
    for epoch, size in ((0, 0.1), (1, 0.1 / 1.5), (2, 0.1 / 2)):
        method = PermPrinted(lr=0.1, local_steps=1, decay=0.5)
        moved = method.tour(fed, new, v, home, alpha, epoch)
        assert moved.item() == pytest.approx(size * 2.0, abs=1e-12)
