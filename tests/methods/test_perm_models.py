"""PERM where clients bring modules of their own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from fedkin.core.faults import Faults
from fedkin.core.federation import parts
from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods import Local, Perm, PermModels
from fedkin.methods.shared import choosing
from fedkin.models import build
from tests.helpers import blobs, federation, run


class Deep(nn.Module):
    """No chain of layers: two branches that are added."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, 12), nn.Linear(5, 12), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.a(x)) + torch.relu(self.b(x)))


def own_modules():
    """Clients 0 and 1 have one module, 2 and 3 another; 4 and 5 have the common one."""
    torch.manual_seed(3)
    deep, wide = Deep().double(), build("mlp:24", (5,), 3, seed=4).double()
    return {"0": deep, "1": deep, "2": wide, "3": wide}


def small_problem(models=None, data=None, **options):
    common = build("mlp:4", (5,), 3)
    return Problem(common, data or blobs(), dtype=torch.float64, models=models, **options)


def test_with_one_architecture_it_is_exactly_perm():
    common = {"lr": 0.1, "local_steps": 3, "warm_up": 6, "lam_rel": 2.0}
    faults = Faults(drop=0.2)
    a, b = (federation(small_problem(), fraction=0.7, faults=faults) for _ in range(2))
    ours, perm = PermModels(**common), Perm(**common)
    own, whole = run(ours, a, 24), run(perm, b, 24)
    for name in ("x", "alpha", "plan", "lam", "sure"):
        assert torch.equal(getattr(own, name), getattr(whole, name))
    rows = torch.arange(whole.v.count)
    assert torch.equal(own.v.read(rows), whole.v.read(rows))
    assert torch.equal(a.accounts.table, b.accounts.table)
    for fed in (a, b):
        fed.after_round(24)
    (asked,) = parts(ours.personal(a, own))
    (wanted,) = parts(perm.personal(b, whole))
    assert torch.equal(a.look(asked)["model"], b.look(wanted)["model"])


# a plain loop -------------------------------------------------------------------------------


def gradient(module, vector, examples):
    """Of the mean loss over examples, by autograd."""
    v = vector.clone().requires_grad_()
    named, start = {}, 0
    for name, parameter in module.named_parameters():
        named[name] = v[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    x, y = examples
    outputs = torch.func.functional_call(module, named, (x.double(),))
    return torch.autograd.grad(cross_entropy(outputs, y), v)[0]


def descend(module, v, examples, steps, lr):
    for _ in range(steps):
        v = v - lr * gradient(module, v, examples)
    return v


def test_weights_by_the_common_model_and_visits_are_those_of_a_plain_loop():
    data, models, lr, steps = blobs(), own_modules(), 0.2, 6
    sizes = data.train.sizes
    whole = {"batch_size": int(sizes.max()), "reshuffle": True}
    problem = small_problem(models, data, **whole)
    fed = federation(problem)
    method = PermModels(lr=lr, local_steps=steps, warm_up=2, lam_rel=1.0)
    at = [data.train[i] for i in range(6)]

    common = build("mlp:4", (5,), 3).double()
    module = [models.get(str(i), common) for i in range(6)]
    first = [parameters_to_vector(m.parameters()).detach() for m in module]
    w = parameters_to_vector(common.parameters()).detach()
    kinds = [(0, 1), (2, 3), (4, 5)]
    means = {kind: first[kind[0]] for kind in kinds}
    for _ in range(2):  # the warm-up: everybody trains w, and own models with those alike
        w = torch.stack([descend(common, w, at[i], steps, lr) for i in range(6)]).mean(0)
        for kind in kinds[:2]:
            m, x = module[kind[0]], means[kind]
            means[kind] = torch.stack([descend(m, x, at[i], steps, lr) for i in kind]).mean(0)
    means[kinds[2]] = w  # the common model itself
    models_ = {i: means[kind] for kind in kinds for i in kind}

    carries = [sum(p.numel() for p in m.parameters()) for m in module]
    able = np.array([[carries[j] >= carries[i] for j in range(6)] for i in range(6)])
    g = torch.stack([gradient(common, w, at[i]) for i in range(6)])
    z = torch.cdist(g, g).square().numpy()
    # torch's median of an even number is the lower of the two
    lam = np.sort(z[able & ~np.eye(6, dtype=bool)])
    lam = lam[(len(lam) - 1) // 2] * sizes.double().mean().item()

    state, away = run(method, fed, 2), False
    for number in range(3, 6):
        fed.begin_round(number)
        method.round(fed, state)
        now, turns = state.plan[state.plan[:, 1] == state.hop - 1], state.share * steps
        assert turns == int(turns)  # otherwise they would be rounded at random
        for i, c in now[:, 2:].tolist():
            away = away or c != i
            models_[i] = descend(module[i], models_[i], at[c], int(turns), lr)
        for i, row in enumerate(state.v.read(torch.arange(6))):
            torch.testing.assert_close(row[: len(first[i])], models_[i])
            assert row[len(first[i]) :].eq(0).all()
    n = sizes.numpy()
    for i in range(6):
        found = minimize(
            lambda a, i=i: (a @ z[i] + lam * (a**2 / n).sum()) * 10, np.eye(6)[i],
            bounds=[(0, float(able[i, j])) for j in range(6)],
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1}, options={"ftol": 1e-14},
        )  # fmt: skip
        np.testing.assert_allclose(state.alpha[0, i].numpy(), found.x, atol=2e-3)
    assert (state.alpha[0] > 0).sum() > 6
    assert away


# hard rules ---------------------------------------------------------------------------------


class Watched:
    """An engine that notes which client is asked to work on which module."""

    def __init__(self, engine):
        self.engine, self.asked = engine, set()

    def run(self, request):
        self.asked |= {(client, request.variant.module) for client in request.at.tolist()}
        return self.engine.run(request)


@pytest.mark.parametrize("faults", [Faults(), Faults(drop=0.6)])
def test_no_client_is_ever_given_a_model_larger_than_its_own(faults):
    problem = small_problem(own_modules())
    fed = federation(problem, fraction=0.7, faults=faults)
    fed.engine = Watched(fed.engine)
    method = PermModels(warm_up=2, trial=40, lr=0.1, local_steps=2)
    state = run(method, fed, 60)
    size = {"": 39, "Deep": 183, "Sequential": 219}
    own = [183, 183, 219, 219, 39, 39]
    assert state.sizes.tolist() == own
    assert fed.engine.asked >= {(4, ""), (0, "Deep"), (2, "Sequential"), (2, "Deep")}
    assert all(size[module] <= own[client] for client, module in fed.engine.asked)
    alpha = method.results(state)["mixing"]
    torch.testing.assert_close(alpha.sum(1), torch.ones(6).double())


def test_a_common_model_that_somebody_cannot_carry_is_refused():
    fed = federation(Problem(build("mlp:16", (5,), 3), blobs(), models={"2": "mlp:4"}))
    with pytest.raises(FedkinError, match=r"'2' has a model of 39 .* common one, of 147"):
        PermModels().init(fed)


def test_bytes_are_those_of_the_models_that_travel():
    problem = small_problem(own_modules())
    fed = federation(problem)
    run(PermModels(warm_up=1, lr=0.1), fed, 1)
    # w down and its change up, the client's own kind of model if it is another one, and its own
    # as it trains alone
    expected = [8 * (39 + own) for own in (2 * 183, 2 * 183, 2 * 219, 2 * 219, 39, 39)]
    assert fed.accounts.column("bytes_down").tolist() == expected
    assert fed.accounts.column("bytes_up").tolist() == expected


def test_alone_every_client_trains_its_own_module_as_if_nobody_else_were_there():
    data, models = blobs(), own_modules()
    whole = {"batch_size": int(data.train.sizes.max()), "reshuffle": True}
    fed = federation(small_problem(models, data, **whole))
    method = Local(lr=0.1, local_steps=3)
    state = run(method, fed, 2)
    fed.after_round(2)
    seen = 0
    for request in parts(method.personal(fed, state)):
        found = fed.look(request)["model"]
        for i, row in zip(request.at.tolist(), found, strict=True):
            module = models.get(str(i), build("mlp:4", (5,), 3).double())
            first = parameters_to_vector(module.parameters()).detach()
            torch.testing.assert_close(row, descend(module, first, data.train[i], 6, 0.1))
            seen += 1
    assert seen == 6


@pytest.mark.parametrize("rounds", [2, 5, 9])
def test_a_client_that_goes_alone_ends_where_local_training_ends(rounds, monkeypatch):
    """In the warm-up, in the trial, and after it: by a plain loop over all its data."""

    def all_alone(losses, alone):
        clients = len(losses.count)
        return torch.zeros(clients, dtype=torch.int64), torch.ones(clients).double()

    monkeypatch.setattr(choosing, "choose", all_alone)
    data, models = blobs(), own_modules()
    whole = {"batch_size": int(data.train.sizes.max()), "reshuffle": True}
    fed = federation(small_problem(models, data, **whole))
    method = PermModels(lr=0.1, local_steps=3, warm_up=2, trial=4)
    state = run(method, fed, rounds)
    fed.after_round(rounds)
    assert bool(state.trying) == (rounds < 6)
    asked = parts(method.personal(fed, state))
    pairs = (zip(r.at.tolist(), fed.look(r)["model"], strict=True) for r in asked)
    rows = dict(pair for some in pairs for pair in some)
    for i in range(6):
        module = models.get(str(i), build("mlp:4", (5,), 3).double())
        first = parameters_to_vector(module.parameters()).detach()
        torch.testing.assert_close(rows[i], descend(module, first, data.train[i], 3 * rounds, 0.1))


def test_kin_of_other_architectures_are_found():
    """Two kinds of clients (labels are swapped); each kind has three modules."""
    data = blobs(clients=12, samples=60)
    other = torch.arange(12) % 2 == 1
    owner = torch.repeat_interleave(torch.arange(12), data.train.sizes)
    swapped = torch.tensor([1, 2, 0])[data.train.y]
    train = replace(data.train, y=torch.where(other[owner], swapped, data.train.y))
    names = ["mlp:24", "mlp:24", "mlp:16,8", "mlp:16,8"] * 3
    models = {str(i): name for i, name in enumerate(names) if i < 8}
    fed = federation(small_problem(models, replace(data, train=train)))
    method = PermModels(warm_up=6, lam_rel=0.3, lr=0.1)
    alpha = method.results(run(method, fed, 10))["mixing"]
    assert (alpha * (other[:, None] == other)).sum() / alpha.sum() > 0.95
    kinds = torch.tensor([1, 1, 2, 2] * 2 + [0] * 4)
    across = (alpha * (kinds[:, None] != kinds)).sum() / alpha.sum()
    assert across > 0.2


def test_newcomers_are_refused_and_a_module_that_does_not_fit_is_named():
    problem = small_problem(own_modules())
    fed = federation(problem)
    method = PermModels(warm_up=1)
    with pytest.raises(FedkinError, match="does not know which of the architectures"):
        method.welcome(fed, run(method, fed, 1), fed, True)
    with pytest.raises(FedkinError, match=r"model 'Linear' of some clients: .* 3 classes"):
        small_problem({"1": nn.Linear(5, 2)})
    with pytest.raises(FedkinError, match="unknown client in models 'nobody'"):
        small_problem({"nobody": "mlp:4"})
