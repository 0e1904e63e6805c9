"""PERM with models of different sizes, as it is used by default."""

import pytest
import torch

from fedkin.core.faults import Faults
from fedkin.core.federation import parts
from fedkin.core.problem import Problem
from fedkin.core.variants import HELD_OUT
from fedkin.methods import Submodel, SubmodelAlone, SubmodelPerm
from fedkin.methods.shared import choosing
from fedkin.models import build
from tests.helpers import blobs, federation, run

RATES = (1.0, 0.5, 0.25)


def small_problem():
    """Batches are all of a client's data, so that nothing is random."""
    data = blobs()
    whole = {"batch_size": int(data.train.sizes.max()), "reshuffle": True}
    return Problem(build("mlp:12", (5,), 3), data, dtype=torch.float64, **whole)


def personal_models(method, fed, state):
    fed.after_round(fed.round)
    rows = {}
    for request in parts(method.personal(fed, state)):
        rows.update(zip(request.at.tolist(), fed.look(request)["model"], strict=True))
    return rows


class Watched:
    """An engine that notes which client is asked to work on which size."""

    def __init__(self, engine):
        self.engine, self.asked = engine, set()

    def run(self, request):
        self.asked |= {(client, request.variant.rate) for client in request.at.tolist()}
        return self.engine.run(request)


@pytest.mark.parametrize("lam_rel", [None, 5.0])
def test_no_client_is_ever_given_a_model_larger_than_it_can_carry(lam_rel):
    fed = federation(small_problem(), fraction=0.7, faults=Faults(drop=0.3))
    fed.engine = Watched(fed.engine)
    method = SubmodelPerm(rates=RATES, warm_up=2, trial=4, lr=0.1, local_steps=2, lam_rel=lam_rel)
    state = run(method, fed, 12)
    rates = state.rates.tolist()
    assert all(rate <= rates[client] for client, rate in fed.engine.asked)
    assert any(rate < rates[client] for client, rate in fed.engine.asked)
    alpha = method.results(state)["mixing"]
    chosen = state.lam.isfinite()
    cannot = state.rates < state.rates[:, None]
    assert alpha[chosen][cannot[chosen]].sum() == 0


@pytest.mark.parametrize("rounds", [2, 4, 8])
def test_a_client_that_goes_alone_ends_where_its_own_size_alone_ends(rounds, monkeypatch):
    def all_alone(losses, alone):
        clients = len(losses.count)
        return torch.zeros(clients, dtype=torch.int64), torch.ones(clients).double()

    monkeypatch.setattr(choosing, "choose", all_alone)
    work = {"rates": RATES, "lr": 0.1, "local_steps": 2}
    method, fed = SubmodelPerm(warm_up=2, trial=4, **work), federation(small_problem())
    found = personal_models(method, fed, run(method, fed, rounds))
    alone, fed = SubmodelAlone(**work), federation(small_problem())
    wanted = personal_models(alone, fed, run(alone, fed, rounds))
    for client in range(6):
        torch.testing.assert_close(found[client], wanted[client])


def test_the_warm_up_trains_w_as_sub_models_do_on_what_is_not_held_out():
    work = {"rates": RATES, "lr": 0.1, "local_steps": 2}
    state = run(SubmodelPerm(warm_up=3, **work), federation(small_problem()), 3)
    other = run(Submodel(**work), federation(small_problem().variant(HELD_OUT)), 3)
    torch.testing.assert_close(state.x, other.x)


@pytest.mark.parametrize(("scaler", "wanted"), [(True, True), ("weights", False), (False, False)])
def test_clients_are_compared_by_models_whose_activations_are_scaled_as_in_training(scaler, wanted):
    fed = federation(small_problem())
    method = SubmodelPerm(rates=RATES, scaler=scaler)
    x, form = method.compared(fed, method.init(fed), HELD_OUT)
    assert form.scaler == wanted
    assert form.rate == min(RATES)
    assert len(x) == fed.problem.variant(form).size
