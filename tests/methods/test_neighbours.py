"""FedPer, LG-FedAvg, FedBN, FedRep, FedBABU, FedDyn, FedAvgM, FedAdam, pFedHN, FedALA, FedFomo,
CFL: against textbook runs, and where their papers say what they come to."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkin.core.problem import Problem
from fedkin.core.variants import HELD_OUT
from fedkin.data import DataConfig, load
from fedkin.data.clients import ClientData, Examples
from fedkin.errors import FedkinError
from fedkin.methods import (
    CFL,
    FedAdam,
    FedALA,
    FedAvg,
    FedAvgM,
    FedBABU,
    FedBN,
    FedDyn,
    FedFomo,
    FedPer,
    FedRep,
    FedYogi,
    LGFedAvg,
    Local,
    PFedHN,
)
from fedkin.methods.cfl import cut
from fedkin.models import build
from fedkin.runs.train import train
from tests.helpers import blobs, federation, least_squares, personal_models, run
from tests.methods import textbook as book
from tests.methods.truth import planted, weighted_optimum

BASE, HEAD, NORM = ("0.",), ("2.",), ("1.",)
WORK = {"lr": book.LR, "local_steps": book.STEPS}
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
some_or_all = pytest.mark.parametrize("fraction", [1.0, 0.5])


def layers_apart(task, fraction, shared, norm=False):
    """FedAvg of the layers `shared`; every client keeps its others."""
    server, own = book.network(norm), [book.network(norm) for _ in book.SIZES]
    for who in book.asked(task, fraction):
        for i in who:
            own[i] = book.descend(task, i, book.load(own[i], server.state_dict(), shared))
        server = book.load(server, book.mean([own[i] for i in who]), shared)
    return book.flat([book.load(m, server.state_dict(), shared) for m in own])


@some_or_all
@pytest.mark.parametrize(
    ("method", "shared", "norm"),
    [(FedPer, BASE, False), (LGFedAvg, HEAD, False), (FedBN, ("0.", "3."), True)],
)
def test_layers_that_travel_and_layers_that_stay(method, shared, norm, fraction) -> None:
    task = book.problem(norm)
    expected = layers_apart(task, fraction, shared, norm)
    torch.testing.assert_close(book.ours(method(**WORK), task, fraction), expected, **CLOSE)


def test_the_head_can_be_named_and_only_the_rest_travels() -> None:
    task = book.problem(norm=True)
    last, named = FedPer(**WORK), FedPer(**WORK, head="1.,3.")
    assert not torch.equal(book.ours(last, task, 1.0), book.ours(named, task, 1.0))
    expected = layers_apart(task, 1.0, BASE, norm=True)
    torch.testing.assert_close(book.ours(named, task, 1.0), expected, **CLOSE)
    fed = federation(task)
    run(named, fed, 1)
    assert fed.accounts.total("bytes_up") == 4 * 8 * (3 * 4 + 4)  # clients, bytes, base


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (FedPer(), "has a single layer.*head = '0:10'"),
        (FedRep(head="9."), "unknown part of the model '9.'"),
        (LGFedAvg(head="1"), "the whole model would be shared"),
        (FedBN(), "models with normalisation layers"),
    ],
)
def test_models_without_such_layers_are_refused(method, sentence) -> None:
    task = Problem(build("logistic", (5,), 3), blobs(clients=3))
    with pytest.raises(FedkinError, match=sentence):
        run(method, federation(task), 1)


@some_or_all
def test_fedrep_fits_heads_then_bases(fraction) -> None:
    task = book.problem()
    server, own = book.network(), [book.network() for _ in book.SIZES]
    for who in book.asked(task, fraction):
        for i in who:
            start = book.load(own[i], server.state_dict(), BASE)
            own[i] = book.descend(task, i, book.descend(task, i, start, 5, HEAD), only=BASE)
        server = book.load(server, book.mean([own[i] for i in who]), BASE)
    expected = book.flat([book.load(m, server.state_dict(), BASE) for m in own])
    found = book.ours(FedRep(**WORK, head_steps=5), task, fraction)
    torch.testing.assert_close(found, expected, **CLOSE)


@some_or_all
def test_fedbabu_trains_bases_and_tunes_at_the_end(fraction) -> None:
    task, server = book.problem(), book.network()
    for who in book.asked(task, fraction):
        server = book.load(
            server, book.mean([book.descend(task, i, server, only=BASE) for i in who])
        )
    assert torch.equal(server[2].weight, book.network()[2].weight)
    expected = book.flat([book.descend(task, i, server, 6) for i in range(4)])
    found = book.ours(FedBABU(**WORK, tune_steps=6), task, fraction)
    torch.testing.assert_close(found, expected, **CLOSE)


@some_or_all
def test_feddyn_as_its_algorithm_says(fraction) -> None:
    task, alpha = book.problem(), 0.3
    x, h = book.flat([book.network()])[0], 0.0
    own = [torch.zeros_like(x) for _ in book.SIZES]

    def filled(vector):
        module = book.network()
        nn.utils.vector_to_parameters(vector, module.parameters())
        return module

    for who in book.asked(task, fraction):
        ends = []
        for i in who:

            def bend(module, i=i, x=x):
                y = nn.utils.parameters_to_vector(module.parameters()).detach()
                extra, at = -own[i] + alpha * (y - x), 0
                for p in module.parameters():
                    p.grad += extra[at : at + p.numel()].view_as(p)
                    at += p.numel()

            end = book.flat([book.descend(task, i, filled(x), bend=bend)])[0]
            ends.append((i, end))
        for i, end in ends:
            own[i] = own[i] - alpha * (end - x)
        h = h - alpha / 4 * sum(end - x for _, end in ends)
        x = sum(end for _, end in ends) / len(ends) - h / alpha
    found = book.ours(FedDyn(**WORK, pull=alpha), task, fraction)
    torch.testing.assert_close(found, x.expand(4, -1), **CLOSE)


@some_or_all
@pytest.mark.parametrize("method", [FedAvgM, FedAdam, FedYogi])
def test_servers_take_the_mean_change_for_a_gradient(method, fraction) -> None:
    """FedAvgM is torch's SGD with momentum on -dx; the others as algorithm 2 of FedOpt says."""
    task, lr, beta1, beta2, tau = book.problem(), 0.4, 0.8, 0.9, 0.01
    server, v, m = book.network(), tau**2, 0.0
    momentum = torch.optim.SGD(server.parameters(), lr, momentum=beta1)
    for who in book.asked(task, fraction):
        x = book.flat([server])[0]
        dx = book.flat([book.descend(task, i, server) for i in who]).mean(0) - x
        if method is FedAvgM:
            nn.utils.vector_to_parameters(-dx, [p.grad for p in with_grads(server)])
            momentum.step()
            continue
        m = beta1 * m + (1 - beta1) * dx
        if method is FedAdam:
            v = beta2 * v + (1 - beta2) * dx**2
        else:
            v = v - (1 - beta2) * dx**2 * torch.sign(v - dx**2)
        nn.utils.vector_to_parameters(x + lr * m / (v**0.5 + tau), server.parameters())
    numbers = {"server_lr": lr, "server_momentum": beta1, "server_beta2": beta2, "tau": tau}
    found = book.ours(method(**WORK, **numbers), task, fraction)
    torch.testing.assert_close(found, book.flat([server] * 4), **CLOSE)


def with_grads(module: nn.Module) -> list[nn.Parameter]:
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    return list(module.parameters())


def test_feddyn_comes_to_the_optimum_where_fedavg_does_not() -> None:
    """Theorem 1 of the paper: no bias from local steps, however different clients are."""
    task = least_squares(clients=4, samples=5)
    optimum = weighted_optimum(task, [1 / 4] * 4)
    work = {"lr": 0.1, "local_steps": 10}
    gaps = []
    for method in (FedDyn(**work, pull=0.5), FedAvg(**work)):
        state = run(method, federation(task), 120)
        gaps.append(float((state.x - optimum).norm()))
    assert gaps[0] < 1e-6
    assert gaps[1] > 1e-2


@some_or_all
def test_pfedhn_moves_its_hypernetwork_along_the_chain_rule(fraction) -> None:
    task, lr = book.problem(), 0.7
    method = PFedHN(**WORK, server_lr=lr, embedding=3, hidden=5)
    begun = method.init(federation(task))
    v, a, b, c, d = (
        t.clone() for t in (begun.v, begun.inner, begun.inner_bias, begun.outer, begun.outer_bias)
    )
    for who in book.asked(task, fraction):
        steps = [torch.zeros_like(t) for t in (v, a, b, c, d)]
        for i in who:
            before = a @ v[i] + b
            units = before.clamp(min=0)
            theta, module = units @ c + d, book.network()
            nn.utils.vector_to_parameters(theta, module.parameters())
            dy = (book.flat([book.descend(task, i, module)])[0] - theta) / len(who)
            back = (c @ dy) * (before > 0)
            steps[4] += dy
            steps[3] += torch.outer(units, dy)
            steps[2] += back
            steps[1] += torch.outer(back, v[i])
            steps[0][i] += a.T @ back
        v, a, b, c, d = (t + lr * step for t, step in zip((v, a, b, c, d), steps, strict=True))
    expected = (v @ a.T + b).clamp(min=0) @ c + d
    torch.testing.assert_close(book.ours(method, task, fraction), expected, **CLOSE)


@some_or_all
def test_fedala_learns_how_much_of_the_head_to_take(fraction) -> None:
    task, server = book.problem(), book.network()
    own, mix, seen = [None] * 4, [{} for _ in range(4)], [0] * 4

    def mixed(i):
        module = book.load(book.network(), server.state_dict())
        for name, p in module.named_parameters() if own[i] is not None else ():
            if name.startswith(HEAD):
                old = dict(own[i].named_parameters())[name].detach()
                p.data = old + mix[i].get(name, torch.ones_like(old)) * (p.data - old)
        return module

    for who in book.asked(task, fraction):
        trained = {}
        for i in who:
            times = 0 if own[i] is None else (7 if seen[i] == 1 else 2)
            for _ in range(times):
                module = mixed(i)
                book.loss_of(task, i, module).backward()
                for name, p in module.named_parameters():
                    if name.startswith(HEAD):
                        gap = server.state_dict()[name] - own[i].state_dict()[name]
                        weight = mix[i].get(name, torch.ones_like(gap))
                        mix[i] = {**mix[i], name: (weight - 3.0 * p.grad * gap).clamp(0, 1)}
            trained[i] = book.descend(task, i, mixed(i))
        for i, module in trained.items():
            own[i], seen[i] = module, seen[i] + 1
        server = book.load(server, book.mean(list(trained.values())))
    method = FedALA(**WORK, mix_lr=3.0, mix_steps=2, first_mix_steps=7)
    expected = book.flat([mixed(i) for i in range(4)])
    torch.testing.assert_close(book.ours(method, task, fraction), expected, **CLOSE)
    assert any((w < 1).any() for weights in mix for w in weights.values())


def held_out(task: Problem, part: str) -> list[tuple[Tensor, Tensor]]:
    """Every client's examples that it trains on, or holds out."""
    found = getattr(task.variant(HELD_OUT), part)
    ends = (found.starts + found.sizes).tolist()
    rows = [slice(int(start), end) for start, end in zip(found.starts, ends, strict=True)]
    return [(found.x[own], found.y[own]) for own in rows]


@some_or_all
def test_fedfomo_weighs_models_by_what_they_gain_per_distance(fraction) -> None:
    task, own, took = book.problem(), [book.network() for _ in range(4)], 0
    examples = Examples.of(held_out(task, "train"))
    trained_on = task.with_data(ClientData(examples, examples, 2), "cpu")
    judged_on = held_out(task, "validation")

    def loss(i, module):
        x, y = judged_on[i]
        return nn.functional.cross_entropy(module(x), y).item()

    for who in book.asked(task, fraction):
        trained = {}
        for i in who:
            v, gains = book.flat([own[i]])[0], {}
            for j in range(4):
                gap = book.flat([own[j]])[0] - v
                if i != j and gap.norm() > 0:
                    gain = loss(i, own[i]) - loss(i, own[j])
                    gains[j] = max(0.0, gain / gap.norm().item())
            total = sum(gains.values())
            took += total > 0
            for j, gain in gains.items() if total else ():
                v = v + gain / total * (book.flat([own[j]])[0] - book.flat([own[i]])[0])
            module = book.network()
            nn.utils.vector_to_parameters(v, module.parameters())
            trained[i] = book.descend(trained_on, i, module)
        for i, module in trained.items():
            own[i] = module
    found = book.ours(FedFomo(**WORK, downloads=3), task, fraction)
    torch.testing.assert_close(found, book.flat(own), rtol=1e-6, atol=1e-8)
    assert took


def test_fedfomo_gains_where_others_have_the_same_task_and_each_has_few_examples() -> None:
    data = load(DataConfig(name="digits", num_clients=20, partition="iid", label_groups=4), seed=0)
    found = {}
    for method in (FedFomo(), Local()):
        task = Problem(build("mlp:32", data.input_shape, 10, seed=0), data)
        settings = {"rounds": 40, "eval_every": 40, "baseline": False, "progress": False}
        found[method.name] = train(task, method, **settings).accuracy
    assert found["fedfomo"] > found["local"] + 0.02


def test_fedfomo_finds_the_clients_with_the_same_task() -> None:
    task, truth = planted()
    method, fed = FedFomo(lr=0.02, local_steps=5, downloads=4), federation(task)
    state = run(method, fed, 40)
    kin = torch.tensor(truth)[:, None] == torch.tensor(truth)
    others = ~torch.eye(len(truth), dtype=torch.bool)
    worth = state.worth
    assert worth[kin & others].mean() > worth[~kin].mean()
    alone = run(local := Local(lr=0.02, local_steps=5), lonely := federation(task), 40)
    ideal = 3 * torch.eye(3, 4, dtype=torch.float64)[truth]
    gap, lonely_gap = (
        (personal_models(m, f, s) - ideal).norm(dim=1).mean()
        for m, f, s in ((method, fed, state), (local, lonely, alone))
    )
    assert gap < lonely_gap


# clusters --------------------------------------------------------------------------------


def test_the_cut_of_a_group_is_the_best_of_all_cuts() -> None:
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        rows = torch.nn.functional.normalize(torch.randn(6, 3, generator=g), dim=1).double()
        cosines, best = (rows @ rows.T).numpy(), 2.0
        for bits in product([False, True], repeat=5):
            half = np.array([False, *bits])
            if half.any():
                best = min(best, cosines[half][:, ~half].max())
        half, a_max = cut(rows)
        assert a_max == pytest.approx(best)
        assert cosines[half][:, ~half].max() == pytest.approx(best)


@some_or_all
def test_cfl_finds_planted_groups(fraction) -> None:
    task, truth = planted()
    method, fed = CFL(lr=0.05, local_steps=5), federation(task, fraction=fraction)
    state = run(method, fed, 60)
    found = {(k, int(c)) for k, c in zip(truth, state.cluster, strict=True)}
    assert len(state.x) == 3
    assert len(found) == 3
    ideal = 3 * torch.eye(3, 4, dtype=torch.float64)[truth]
    torch.testing.assert_close(personal_models(method, fed, state), ideal, rtol=0, atol=0.1)


@some_or_all
def test_cfl_averages_within_groups_and_cuts_those_that_rest(fraction) -> None:
    task, eps1, eps2, gamma = book.problem(), 0.95, 0.1, 0.2
    groups, models, last, first = [[0, 1, 2, 3]], [book.network()], {}, 0.0
    for who in book.asked(task, fraction):
        for k, group in enumerate(groups):
            here = [i for i in who if i in group]
            trained = [book.descend(task, i, models[k]) for i in here]
            for i, end in zip(here, trained, strict=True):
                last[i] = (book.flat([end]) - book.flat([models[k]]))[0]
            models[k] = book.load(models[k], book.mean(trained)) if here else models[k]
        first = first or max(float(change.norm()) for change in last.values())
        for k, group in enumerate(list(groups)):
            if len(group) < 3 or not all(i in last for i in group):
                continue
            largest = max(float(last[i].norm()) for i in group)
            mean = sum(last[i] for i in group) / len(group)
            if float(mean.norm()) >= eps1 * largest or largest <= eps2 * first:
                continue
            alike = {(a, b): float(torch.cosine_similarity(last[a], last[b], 0))
                     for a in group for b in group}  # fmt: skip
            halves = [h for bits in product([0, 1], repeat=len(group) - 1)
                      if (h := [i for i, b in zip(group[1:], bits, strict=True) if b])]  # fmt: skip
            across = [max(alike[a, b] for a in h for b in group if b not in h) for h in halves]
            best = min(range(len(halves)), key=lambda i: across[i])
            if ((1 - across[best]) / 2) ** 0.5 > gamma:
                groups[k] = [i for i in group if i not in halves[best]]
                groups.append(halves[best])
                models.append(models[k])
                last = {i: change for i, change in last.items() if i not in group}
    assert len(groups) > 1 or fraction < 1
    expected = [next(m for m, g in zip(models, groups, strict=True) if i in g) for i in range(4)]
    found = book.ours(CFL(**WORK, eps1=eps1, eps2=eps2, gamma=gamma), task, fraction)
    torch.testing.assert_close(found, book.flat(expected), **CLOSE)


def test_cfl_keeps_clients_with_one_task_together_and_is_fedavg() -> None:
    task = Problem(build("mlp:8", (5,), 3, seed=1), blobs(clients=8), batch_size=10)
    for seed in range(3):
        ours, theirs = (federation(task, seed=seed) for _ in range(2))
        state, plain = run(CFL(lr=0.1), ours, 30), run(FedAvg(lr=0.1), theirs, 30)
        assert len(state.x) == 1
        torch.testing.assert_close(state.x[0], plain.x, rtol=1e-4, atol=1e-5)


def test_cfl_cuts_off_those_that_point_elsewhere_and_keeps_the_first_with_its_own() -> None:
    angles = torch.tensor([0.0, 0.1, 2.0, 0.2, 2.2])
    found, largest = cut(torch.stack([angles.cos(), angles.sin()], 1))
    assert found.tolist() == [False, False, True, False, True]
    assert largest == pytest.approx(math.cos(1.8), abs=1e-6)  # the nearest pair across the cut
