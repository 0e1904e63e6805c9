"""Local and server optimisers against torch.optim and the rules of the papers."""

import pytest
import torch
from torch import nn

from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.engines.lockstep import Lockstep
from fedkin.errors import FedkinError
from fedkin.methods import APFL, IFCA, Ditto, FedAvg, FedDeper, FedProx, Local, Perm, Scaffold
from fedkin.methods.registry import all_methods, get_method
from fedkin.models import build
from fedkin.runs.checks import usual
from fedkin.runs.config import make_config
from fedkin.runs.settings import Settings
from fedkin.runs.train import train
from fedkin.runs.training import Trainer
from tests.helpers import blobs, federation, least_squares, personal_models, run

LR = 0.05
TORCH = {
    "sgd": lambda p, wd: torch.optim.SGD(p, LR, weight_decay=wd),
    "momentum": lambda p, wd: torch.optim.SGD(p, LR, momentum=0.8, weight_decay=wd),
    "nesterov": lambda p, wd: torch.optim.SGD(p, LR, momentum=0.8, nesterov=True, weight_decay=wd),
    "adam": lambda p, wd: torch.optim.Adam(p, LR, betas=(0.8, 0.95), weight_decay=wd),
    "adamw": lambda p, wd: torch.optim.AdamW(p, LR, betas=(0.8, 0.95), weight_decay=wd),
}
NUMBERS = {"momentum": 0.8, "beta2": 0.95}


def whole_batches(sizes=(8, 8, 8), dtype=torch.float64) -> Problem:
    """An MLP at clients whose minibatch is all of their data."""
    g = torch.Generator().manual_seed(1)
    parts = [
        (torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in sizes
    ]
    data = ClientData(Examples.of(parts), Examples.of(parts), 3)
    module = build("mlp:5", (4,), 3, seed=2)
    return Problem(module, data, batch_size=max(sizes), reshuffle=True, dtype=dtype)


def by_torch(problem, client, optimiser, rounds, steps, clip=None, decay=0.0, kept=False):
    """The client alone with torch.optim; a fresh optimiser every round unless kept."""
    module, (x, y) = problem.module(problem.initial[0]), problem.data.train[client]
    made = TORCH[optimiser](module.parameters(), decay)
    for _ in range(rounds):
        made = made if kept else TORCH[optimiser](module.parameters(), decay)
        for _ in range(steps):
            made.zero_grad()
            nn.functional.cross_entropy(module(x.to(problem.dtype)), y).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            made.step()
    return problem.layout.flatten(module)


@pytest.mark.parametrize("state", ["fresh", "kept"])
@pytest.mark.parametrize(("decay", "clip"), [(0.0, None), (0.1, None), (0.1, 0.05)])
@pytest.mark.parametrize("optimiser", list(TORCH))
def test_every_step_is_that_of_torch(optimiser, decay, clip, state) -> None:
    problem = whole_batches()
    method = Local(
        lr=LR, local_steps=4, optimiser=optimiser, weight_decay=decay, clip=clip,
        optimiser_state=state, **NUMBERS,
    )  # fmt: skip
    fed = federation(problem)
    ours = personal_models(method, fed, run(method, fed, 3))
    for client in range(3):
        theirs = by_torch(problem, client, optimiser, 3, 4, clip, decay, state == "kept")
        torch.testing.assert_close(ours[client], theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("optimiser", ["adam", "nesterov"])
def test_single_precision_is_as_close_to_torch_as_rounding_allows(optimiser) -> None:
    problem, exact = whole_batches(dtype=torch.float32), whole_batches()
    method = Local(lr=LR, local_steps=6, optimiser=optimiser, **NUMBERS)
    fed = federation(problem)
    ours = personal_models(method, fed, run(method, fed, 1)).double()
    for client in range(3):
        theirs = by_torch(exact, client, optimiser, 1, 6)
        torch.testing.assert_close(ours[client], theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_clients_with_different_numbers_of_steps_do_not_disturb_each_other(state) -> None:
    problem = least_squares(clients=3, samples=9, batch_size=2)
    problem.train.sizes.copy_(torch.tensor([9, 3, 1]))
    method = Local(lr=0.05, local_epochs=2, optimiser="adam", clip=1.0, optimiser_state=state)
    together, alone = federation(problem, strategy="native:3:1x1"), federation(problem, "wire")
    ours, theirs = (personal_models(method, f, run(method, f, 3)) for f in (together, alone))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_plain_sgd_sends_no_more_than_the_amount_of_work() -> None:
    assert FedAvg().work == {"local_steps": 10}
    assert FedAvg(local_epochs=2, momentum=0.5).work == {"local_epochs": 2}


def test_runs_in_lockstep_may_differ_in_every_number_of_the_optimiser() -> None:
    numbers = (
        {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "clip": 1.0, "beta2": 0.9},
        {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.0, "clip": 0.1, "beta2": 0.99},
    )
    methods = [FedProx(mu=0.3, optimiser="adam", **one) for one in numbers]
    problems = [whole_batches() for _ in methods]
    lockstep, found = Lockstep(problems, "stacked"), {}

    def live(n: int) -> None:
        settings = Settings(rounds=3, eval_every=3)
        trainer = Trainer(
            problems[n], methods[n], settings, None, lambda c: lockstep.engine_of(n, c)
        )
        trainer.run()
        found[n] = trainer.contenders["method"].state.x

    assert lockstep.together([lambda: live(0), lambda: live(1)]) == [None, None]
    for n, method in enumerate(methods):
        alone = run(method, federation(problems[n]), 3)
        torch.testing.assert_close(found[n], alone.x, rtol=1e-9, atol=1e-10)


def test_fedprox_feeds_the_pull_to_the_optimiser() -> None:
    problem, mu = whole_batches(), 0.7
    state = run(FedProx(lr=LR, local_steps=5, mu=mu, optimiser="adam", **NUMBERS),
                federation(problem), 1)  # fmt: skip
    ends = []
    for client in range(3):
        module, (x, y) = problem.module(problem.initial[0]), problem.data.train[client]
        start = [p.detach().clone() for p in module.parameters()]
        made = TORCH["adam"](module.parameters(), 0.0)
        for _ in range(5):
            made.zero_grad()
            loss = nn.functional.cross_entropy(module(x.double()), y)
            pairs = zip(module.parameters(), start, strict=True)
            (loss + mu / 2 * sum((p - s).square().sum() for p, s in pairs)).backward()
            made.step()
        ends.append(problem.layout.flatten(module))
    torch.testing.assert_close(state.x, torch.stack(ends).mean(0), rtol=1e-9, atol=1e-11)


def test_ditto_keeps_an_optimiser_for_each_of_its_models() -> None:
    problem = whole_batches()
    method = Ditto(lr=LR, local_steps=4, lam=0.0, optimiser="adam", optimiser_state="kept",
                   **NUMBERS)  # fmt: skip
    fed = federation(problem)
    ours = personal_models(method, fed, run(method, fed, 3))
    for client in range(3):  # without pull the own model is that of training alone
        theirs = by_torch(problem, client, "adam", 3, 4, kept=True)
        torch.testing.assert_close(ours[client], theirs, rtol=1e-9, atol=1e-11)


def test_apfl_with_all_weight_on_the_own_model_is_training_alone() -> None:
    problem = whole_batches()
    method = APFL(lr=LR, local_steps=4, own_share=1.0, optimiser="momentum", **NUMBERS)
    fed = federation(problem)
    ours = personal_models(method, fed, run(method, fed, 2))
    for client in range(3):
        theirs = by_torch(problem, client, "momentum", 2, 4)
        torch.testing.assert_close(ours[client], theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "name", [n for n, m in all_methods().items() if "optimiser" not in m.refuses]
)
def test_every_method_that_takes_an_optimiser_really_uses_it(name) -> None:
    model = build(usual(get_method(name)), (5,), 3, seed=1)
    problem = Problem(model, blobs(clients=4), batch_size=8)
    found = []
    for how in ({}, {"optimiser": "adam"}, {"weight_decay": 0.5}, {"clip": 1e-3}):
        method = get_method(name)(local_steps=3, **how)
        fed = federation(problem)
        state = run(method, fed, 2)
        fed.after_round(2)
        found.append(personal_models(method, fed, state))
    assert all(torch.isfinite(models).all() for models in found)
    assert all(not torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("name", [n for n, m in all_methods().items() if "optimiser" in m.refuses])
def test_methods_that_are_sgd_by_definition_say_so(name) -> None:
    with pytest.raises(FedkinError, match=f"method '{name}' takes no optimiser: .*by definition"):
        make_config({"method": name, "options": {"optimiser": "adam"}})


def test_refused_settings_are_refused_in_python_too() -> None:
    problem = least_squares()
    for method, word in (
        (FedDeper(optimiser="adam"), "optimiser"),
        (IFCA(server_optimiser="adam"), "server_optimiser"),
        (Perm(optimiser_state="kept"), "optimiser_state"),
    ):
        with pytest.raises(FedkinError, match=f"takes no {word}"):
            train(problem, method, rounds=1)
    Trainer(problem, Scaffold(server_lr=0.5))
    with pytest.raises(FedkinError, match="optimiser"):
        make_config({"method": "fedavg", "options": {"optimiser": "adan"}})


# the server ------------------------------------------------------------------------------


def textbook(name, deltas, x, lr=0.1, beta1=0.8, beta2=0.9, tau=0.01):
    """Algorithm 2 of Reddi et al. (2021), and FedAvgM of Hsu et al. (2019), one entry at a time."""
    m, v = [0.0] * len(x), [tau**2] * len(x)
    for delta in deltas:
        for j, d in enumerate(delta):
            if name == "momentum":
                m[j] = beta1 * m[j] + d
                x[j] += lr * m[j]
                continue
            m[j] = beta1 * m[j] + (1 - beta1) * d
            if name == "adam":
                v[j] = beta2 * v[j] + (1 - beta2) * d**2
            elif name == "yogi":
                sign = (v[j] > d**2) - (v[j] < d**2)
                v[j] = v[j] - (1 - beta2) * d**2 * sign
            x[j] += lr * m[j] / (v[j] ** 0.5 + tau)
    return x


@pytest.mark.parametrize(
    "name", [n for n, m in all_methods().items() if "server_optimiser" not in m.refuses]
)
def test_every_method_that_takes_a_server_optimiser_really_uses_it(name) -> None:
    model = build(usual(get_method(name)), (5,), 3, seed=1)
    problem, found = Problem(model, blobs(clients=3), batch_size=8), []
    for optimiser in ("sgd", "adam"):
        method = get_method(name)(local_steps=2, server_optimiser=optimiser)
        fed = federation(problem)
        state = run(method, fed, 2)  # what a server did in the first round is used in the second
        fed.after_round(2)
        found.append(personal_models(method, fed, state))
    assert not torch.equal(*found)


@pytest.mark.parametrize("name", ["momentum", "adam", "yogi"])
def test_server_optimisers_are_those_of_the_papers(name) -> None:
    problem, rounds = least_squares(), 6
    how = {"server_lr": 0.1, "server_momentum": 0.8, "server_beta2": 0.9, "tau": 0.01}
    method = FedAvg(lr=0.05, local_steps=3, server_optimiser=name, **how)
    fed = federation(problem)
    state = run(method, fed, rounds)
    x, deltas = torch.zeros(3, dtype=torch.float64), []
    for _ in range(rounds):  # clients by hand: the minibatch is all data
        ends = []
        for i in range(4):
            inputs, targets = problem.data.train[i]
            y = x.clone()
            for _ in range(3):
                y = y - 0.05 * inputs.T @ (inputs @ y - targets) / len(targets)
            ends.append(y - x)
        deltas.append(torch.stack(ends).mean(0).tolist())
        x = torch.tensor(textbook(name, deltas, [0.0] * 3), dtype=torch.float64)
    torch.testing.assert_close(state.x, x, rtol=1e-10, atol=1e-12)
