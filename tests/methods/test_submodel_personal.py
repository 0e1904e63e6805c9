"""Personal models of sub-model training: each client's own size, and what they answer."""

import pytest
import torch

from fedkin.core.federation import parts
from fedkin.core.variants import Variant
from fedkin.methods import (
    Ditto,
    LocalizedFedAvg,
    Submodel,
    SubmodelDitto,
    SubmodelLocal,
)
from fedkin.methods.shared.masks import KINDS
from fedkin.runs.evaluation import score
from tests.helpers import federation, run
from tests.methods.test_submodel import RATES, small_problem


@pytest.mark.parametrize("kind", KINDS)
def test_a_personal_model_answers_as_it_did_in_training_with_the_scaler(kind):
    problem = small_problem()
    method = Submodel(rates=(0.5,), kind=kind, scaler=True, lr=0.1, tune_steps=0)
    fed = federation(problem)
    state = run(method, fed, 3)
    (asked,) = parts(method.personal(fed, state))
    at = asked.at[:1]
    own = asked.shared.get("x", asked.each.get("x", [None])[0])
    x = problem.data.train.x[None, :5]
    index = method.part(fed, 0.5, 0, at)
    trained = problem.variant(Variant(0.5, scaler=True)).kernel()
    kept = problem.variant(Variant(0.5)).kernel()
    answers = kept.outputs(own.reshape(1, -1), x)
    torch.testing.assert_close(answers, trained.outputs(state.x[index], x))


@pytest.mark.parametrize("kind", KINDS)
def test_each_client_ends_with_a_personal_model_of_its_own_size(kind):
    fed = federation(small_problem("mlp:24,16"))
    method = SubmodelLocal(rates=RATES, kind=kind, lr=0.1)
    state = run(method, fed, 20)
    sizes = {}
    for request in parts(method.personal(fed, state)):
        models = fed.look(request)["model"]
        sizes |= dict.fromkeys(request.at.tolist(), models.shape[1])
        small = fed.problem.variant(request.variant)
        assert small.module(models[0])(fed.problem.test.x[:4]).shape == (4, 3)
    assert sizes == {
        i: fed.problem.variant(Variant(r)).size for i, r in enumerate(state.rates.tolist())
    }
    scores = score(fed, method.personal(fed, state))
    assert scores.accuracy.mean() > 0.8
    assert scores.examples.tolist() == fed.problem.test.sizes.tolist()


def test_localized_sub_models_at_rate_one_are_localized_fedavg():
    a, b = federation(small_problem()), federation(small_problem())
    cut, whole = SubmodelLocal(rates=(1.0,), lr=0.1, tune_steps=10), LocalizedFedAvg(lr=0.1)
    scores = [score(fed, m.personal(fed, run(m, fed, 3))) for m, fed in ((cut, a), (whole, b))]
    assert torch.equal(scores[0].loss, scores[1].loss)


def test_ditto_with_whole_models_is_exactly_ditto():
    a, b = (federation(small_problem(), fraction=0.7) for _ in range(2))
    cut, whole = SubmodelDitto(rates=(1.0,), lr=0.1), Ditto(lr=0.1)
    first, second = run(cut, a, 4), run(whole, b, 4)
    assert torch.equal(first.x, second.x)
    assert torch.equal(a.accounts.table, b.accounts.table)
    scores = [score(f, m.personal(f, s)) for f, m, s in ((a, cut, first), (b, whole, second))]
    busy = a.accounts.column("gradients") > 0
    assert torch.equal(scores[0].loss[busy], scores[1].loss[busy])


@pytest.mark.parametrize(
    ("kind", "capacity"), list(zip(KINDS, ["uniform", "redrawn"] * 2, strict=True))
)
def test_ditto_keeps_a_model_of_the_clients_own_size_near_its_part_of_x(kind, capacity):
    fed = federation(small_problem("mlp:24,16"))
    method = SubmodelDitto(rates=RATES, kind=kind, capacity=capacity, lr=0.1, lam=0.5)
    state = run(method, fed, 15)
    for request in parts(method.personal(fed, state)):
        assert fed.look(request)["model"].shape[1] == fed.problem.variant(request.variant).size
    scores = score(fed, method.personal(fed, state))
    assert scores.accuracy.mean() > 0.8
    assert fed.engine.memory.tables.keys() == {"v", "v-rate0.5", "v-rate0.25"}


def test_own_steps_are_pulled_to_the_part_of_x_that_the_client_keeps():
    problem = small_problem(dtype=torch.float64, batch_size=50, reshuffle=True)
    fed = federation(problem)
    method = SubmodelDitto(
        rates=(0.5,), kind="rolling", lr=0.1, lam=0.7, local_steps=2, scaler=False
    )
    state = method.init(fed)
    fed.begin_round(2)
    x = state.x[method.part(fed, 0.5, 0, torch.arange(6))]
    method.round(fed, state)
    models = fed.look(parts(method.personal(fed, state))[0])["model"]
    kernel = problem.variant(Variant(0.5)).kernel("autograd")
    for client in range(6):
        inputs, targets = (t[None] for t in problem.data.train[client])
        v = x
        for _ in range(2):
            v = v - 0.1 * (kernel.grad(v, inputs.double(), targets, None) + 0.7 * (v - x))
        torch.testing.assert_close(models[client], v[0])


@pytest.mark.parametrize("kind", ["static", "rolling"])
def test_an_entry_counts_as_trained_once_a_single_client_has_trained_it(kind):
    fed = federation(small_problem())
    method = Submodel(rates=(1.0, *[0.5] * (fed.size - 1)), kind=kind, lr=0.1)
    assert run(method, fed, 1).trained.all()
    half = Submodel(rates=(0.5,), kind="static", lr=0.1)
    found = run(half, federation(small_problem()), 1).trained
    assert found.nonzero()[:, 0].tolist() == half.part(fed, 0.5, 0, torch.tensor([0]))[0].tolist()
