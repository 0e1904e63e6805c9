"""PERM when clients fail or stay away, over the wire, in lockstep, and stopped in mid-epoch."""

import pytest
import torch

from fedkin.core.faults import Faults
from fedkin.core.problem import Problem
from fedkin.methods import PermPrinted, PermTwoStage
from fedkin.models import build
from fedkin.runs.folder import RunFolder
from fedkin.runs.training import Settings, Trainer
from tests.engines import test_lockstep as lockstep
from tests.helpers import (
    blobs,
    federation,
    further,
    goes_on_to_the_bit,
    least_squares,
    personal_models,
    run,
)

both = pytest.mark.parametrize("method", [PermPrinted, PermTwoStage])
EQUAL_WEIGHTS = {"lam": 1e12}


@both
@pytest.mark.parametrize("faults", [Faults(drop=1.0), Faults(nan=1.0), Faults(drop=0.5, nan=0.2)])
def test_a_model_whose_visit_fails_comes_home_unchanged(method, faults):
    chosen, fed = method(lr=0.05, warm_up=1, **EQUAL_WEIGHTS), federation(least_squares(clients=8))
    state = run(chosen, fed, 3)
    before, hosts = state.v.clone(), state.plan[state.hop].clone()
    fed.faults = faults
    further(chosen, fed, state, 1)
    changed = (state.v != before).any(1)
    faulty = faults.draw(fed_keys(fed, hosts))
    assert torch.equal(changed, torch.from_numpy(~(faulty.lost | faulty.nan)))


def fed_keys(fed, hosts):
    """The random keys of the round's second request, the visits."""
    fed.begin_round(fed.round)
    fed.request(seen, at=torch.arange(0))
    return fed.request(seen, at=hosts).keys


def seen(client):
    return {}


def test_only_those_who_take_part_are_asked_and_host_models():
    fed = federation(least_squares(clients=10), fraction=0.3)
    method = PermPrinted(lr=0.05, warm_up=0, refresh="round")
    state = method.init(fed)
    for number in range(1, 20):
        fed.accounts.table.zero_()
        before = state.v.clone()
        further(method, fed, state, 1)
        present = fed.sample()
        assert fed.round == number
        busy = fed.accounts.column("gradients").nonzero()[:, 0]
        assert torch.isin(busy, present).all()
        hosts = state.plan[state.hop - 1]
        moved = (state.v != before).any(1)
        assert torch.isin(hosts[moved], present).all()


def test_of_clients_never_heard_nobody_learns():
    fed = federation(least_squares(clients=10), fraction=0.3)
    state = run(PermTwoStage(warm_up=0, **EQUAL_WEIGHTS), fed, 1)
    present = fed.sample()
    expected = torch.eye(10, dtype=torch.float64)
    expected[present[:, None], present] = 1 / 3
    torch.testing.assert_close(state.alpha, expected)
    state = run(PermTwoStage(warm_up=0, **EQUAL_WEIGHTS), fed, 40)
    assert (state.heard > 0).all()
    torch.testing.assert_close(state.alpha, torch.full_like(expected, 1 / 10))


# after the warm-up, which is all that the common checks see of it -----------------------------


def classification(dtype=torch.float64):
    module = build("mlp:8", (5,), 3, seed=1)
    return Problem(module, blobs(clients=5, samples=20), batch_size=6, dtype=dtype)


@both
@pytest.mark.parametrize("schedule", ["packed", "cyclic"])
def test_wire_and_blocks_give_the_same_models_and_costs(method, schedule):
    chosen = method(lr=0.05, local_steps=3, warm_up=1, schedule=schedule)
    outcomes = []
    engines = ("embedded", "native:5:1x1"), ("embedded", "vmap:2:1x1"), ("wire", "")
    for engine, strategy in engines:
        fed = federation(classification(), engine, strategy, fraction=0.6, seed=2)
        state = run(chosen, fed, 9)
        assert state.epoch > 1
        outcomes.append((personal_models(chosen, fed, state), fed.accounts.table))
    for models, accounts in outcomes[1:]:
        torch.testing.assert_close(models, outcomes[0][0], rtol=0, atol=1e-10)
        assert torch.equal(accounts, outcomes[0][1])


@both
def test_a_run_stopped_everywhere_goes_on_to_the_bit(method, tmp_path):
    def trainer(name):
        settings = Settings(
            rounds=8, checkpoint_every=1, eval_every=8, fraction=0.8, strategy="native:3:1x1",
            baseline=False, faults=Faults(drop=0.1),
        )  # fmt: skip
        chosen = method(lr=0.05, local_steps=2, warm_up=2, lam_rel=2.0, polish=0.1)
        folder = RunFolder.create(tmp_path / name, f'method = "{chosen.name}"\n')
        return Trainer(classification(torch.float32), chosen, settings, folder)

    goes_on_to_the_bit(trainer, range(1, 8), "mixing.csv")


@both
@pytest.mark.parametrize("sweep", [{"lr": (0.05, 0.02, 0.01)}, {"sketch": (None, 20, 30)}])
def test_runs_in_lockstep_equal_the_same_runs_alone(method, sweep):
    problems, seeds = [lockstep.problem(seed) for seed in (0, 1, 0)], [0, 1, 2]
    [(name, values)] = sweep.items()
    methods = [method(local_steps=3, warm_up=0, **{name: value}) for value in values]
    results = lockstep.stacked(methods, problems, seeds)
    for i, (models, accounts) in enumerate(results):
        expected = lockstep.alone(methods[i], problems[i], seeds[i])
        torch.testing.assert_close(models, expected[0], rtol=0, atol=1e-9)
        assert torch.equal(accounts, expected[1])


@both
def test_faults_in_every_phase_leave_finite_models(method):
    fed = federation(classification(), faults=Faults(drop=0.4, nan=0.3), fraction=0.8)
    chosen = method(lr=0.05, warm_up=1)
    state = run(chosen, fed, 30)
    assert torch.isfinite(personal_models(chosen, fed, state)).all()
    torch.testing.assert_close(state.alpha.sum(1), torch.ones(5, dtype=torch.float64))
