"""PERM by default: steps, the choice of lambda, and what must hold whatever is chosen."""

import pytest
import torch

from fedkin.core.faults import Faults
from fedkin.core.problem import Problem
from fedkin.core.variants import HELD_OUT
from fedkin.methods import Local, Perm
from fedkin.methods.shared import choosing
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
from tests.methods.truth import weighted_optimum

SHORT = {"warm_up": 1, "trial": 5, "local_steps": 3, "lr": 0.05}


def kinds(turned: torch.Tensor, samples: int = 20, far: float = 1.0) -> Problem:
    """Client i follows y = x.w_i, w_i one of a few true models, with some noise."""
    problem = least_squares(len(turned), samples, seed=3, batch_size=20)
    truth = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise = torch.randn(len(turned) * samples, generator=torch.Generator().manual_seed(2))
    own = far * truth[turned].repeat_interleave(samples, 0)
    problem.train.y.copy_((problem.train.x * own).sum(1) + 0.5 * noise.double())
    return problem


# steps -------------------------------------------------------------------------------------


def test_steps_of_one_size_go_to_the_optimum_of_the_weighted_objective():
    problem = least_squares(samples=40, seed=1)
    method = Perm(lr=0.1, local_steps=2, warm_up=5, lam_rel=1.0)
    fed = federation(problem)
    state = run(method, fed, 40)
    mean = torch.zeros(4, 3).double()
    for _ in range(240):  # visits move a model to and fro around the optimum
        mean += further(method, fed, state, 1).v.read(torch.arange(4)) / 240
    alpha = method.results(state)["mixing"]
    assert ((alpha > 0).sum(1) > 1).all()
    for i in range(4):
        best, own = weighted_optimum(problem, alpha[i]), weighted_optimum(problem, torch.eye(4)[i])
        assert (mean[i] - best).norm() < 0.25 * (best - own).norm()


def test_with_weight_on_oneself_only_it_is_local_training():
    problem = least_squares()
    local, fed = Local(lr=0.05, local_steps=3), federation(problem)
    alone = personal_models(local, fed, run(local, fed, 6))
    method, fed = Perm(lr=0.05, local_steps=3, warm_up=0, lam_rel=0.0), federation(problem)
    torch.testing.assert_close(run(method, fed, 6).v.read(torch.arange(4)), alone)


def test_before_the_choice_those_alone_train_as_without_the_others_from_the_first_round():
    problem = least_squares(samples=20)
    local, fed = Local(lr=0.05, local_steps=3), federation(problem.variant(HELD_OUT))
    alone = personal_models(local, fed, run(local, fed, 6))
    method, fed = Perm(lr=0.05, local_steps=3, warm_up=5, trial=9), federation(problem)
    state = run(method, fed, 5)
    assert not torch.allclose(state.v.read(torch.arange(4)), alone)
    torch.testing.assert_close(further(method, fed, state, 1).v.read(torch.arange(4)), alone)


def test_a_round_costs_no_more_than_fedavgs_whoever_is_visited():
    fed = federation(least_squares(clients=6, samples=12, seed=4))
    method = Perm(local_steps=10, warm_up=0, lam_rel=1.0, lr=0.01)
    rounds = 60
    run(method, fed, rounds)
    gradients = fed.accounts.total("gradients")
    assert gradients <= 1.15 * 6 * 10 * rounds


# which lambda ------------------------------------------------------------------------------


def chosen(problem, rounds=16, **options):
    fed, method = federation(problem), Perm(warm_up=3, trial=12, lr=0.1, **options)
    state = run(method, fed, rounds)
    return state, method, fed


def test_alike_clients_share_one_model():
    state, method, _ = chosen(kinds(torch.zeros(12, dtype=torch.int64)))
    assert state.lam.isinf().double().mean() > 0.9
    torch.testing.assert_close(method.results(state)["mixing"][state.lam.isinf()][0],
                               torch.full((12,), 1 / 12).double())  # fmt: skip


def test_clients_without_kin_train_alone():
    state, method, _ = chosen(kinds(torch.arange(5), samples=60, far=4.0), tune_steps=0)
    own = method.results(state)["mixing"].diagonal()
    assert (own > 0.9).all()
    assert (state.sure > 0.5).all()


def test_groups_learn_from_their_own_and_are_sure_of_it():
    groups = torch.arange(12) % 2
    state, method, _ = chosen(kinds(groups, far=4.0), tune_steps=2)
    alpha = method.results(state)["mixing"]
    assert state.lam.isfinite().all()
    assert (state.lam > 0).all()
    assert state.sure.mean() > 0.7
    assert (alpha * (groups[:, None] != groups)).sum(1).mean() < 0.1


def test_nobody_expects_more_loss_than_at_either_extreme():
    state, method, _ = chosen(kinds(torch.arange(8) % 3, samples=12))
    losses = method.held_out_losses(state)
    way, _ = choosing.choose(losses, alone=(0, 1))
    alone, all_alike = 0, 2 * len(method.tried)
    for extreme in (alone, alone + 1, all_alike, all_alike + 1):
        expected, _ = choosing.compare(losses, extreme)
        assert (expected.gather(1, way[:, None]).mean(0) <= 1e-9).all()


def test_the_trial_lasts_while_another_way_is_catching_up_three_times_its_length_at_most():
    method, fed = Perm(trial=20), federation(least_squares(clients=4))
    state = method.init(fed)
    state.count[0] = 1
    state.course = torch.tensor([[0.15, 0.68, 0.21], [0.13, 0.35, 0.15]]).double()
    assert not method.is_clear(state, 20)
    assert method.is_clear(state, 60)
    state.course = torch.cat([state.course[1:], torch.tensor([[0.125, 0.3, 0.09]]).double()])
    assert method.is_clear(state, 30)


def test_all_who_use_the_one_model_train_it_and_half_of_the_others():
    fed = federation(least_squares(clients=12), fraction=0.75)
    fed.begin_round(1)
    use_w, present = torch.arange(12) % 3 == 0, fed.sample()
    found = Perm().trainers(fed, use_w)
    assert set(found.tolist()) <= set(present.tolist())
    assert set(present[use_w[present]].tolist()) <= set(found.tolist())
    others = int((~use_w[present]).sum())
    assert int((~use_w[found]).sum()) == (others + 1) // 2


def test_a_given_lambda_needs_no_trial():
    state, method, _ = chosen(kinds(torch.arange(8) % 2), lam_rel=0.7)
    assert torch.equal(state.lam, torch.full((8,), 0.7, dtype=torch.float64))
    assert state.count.sum() == 0
    assert method.results(state)["sharing"].shape == (8, 3)


# whatever happens --------------------------------------------------------------------------


def classification(dtype=torch.float64):
    module = build("mlp:8", (5,), 3, seed=1)
    return Problem(module, blobs(clients=5, samples=20), batch_size=6, dtype=dtype)


@pytest.mark.parametrize("work", [{}, {"local_epochs": 1}])
def test_wire_and_blocks_give_the_same_models_and_costs(work):
    method, outcomes = Perm(**SHORT | work), []
    engines = ("embedded", "native:5:1x1"), ("embedded", "vmap:2:1x1"), ("wire", "")
    for engine, strategy in engines:
        fed = federation(classification(), engine, strategy, fraction=0.8, seed=2)
        state = run(method, fed, 9)
        assert not state.trying
        outcomes.append((personal_models(method, fed, state), fed.accounts.table))
    for models, accounts in outcomes[1:]:
        torch.testing.assert_close(models, outcomes[0][0], rtol=0, atol=1e-10)
        assert torch.equal(accounts, outcomes[0][1])


def test_a_run_stopped_everywhere_goes_on_to_the_bit(tmp_path):
    def trainer(name):
        settings = Settings(
            rounds=8, checkpoint_every=1, eval_every=8, fraction=0.8, strategy="native:3:1x1",
            baseline=False, faults=Faults(drop=0.1),
        )  # fmt: skip
        folder = RunFolder.create(tmp_path / name, 'method = "perm"\n')
        return Trainer(classification(torch.float32), Perm(**SHORT), settings, folder)

    goes_on_to_the_bit(trainer, range(1, 8), "mixing.csv", "sharing.csv")


def test_runs_in_lockstep_equal_the_same_runs_alone():
    problems, seeds = [lockstep.problem(seed) for seed in (0, 1, 0)], [0, 1, 2]
    methods = [Perm(local_steps=3, warm_up=0, trial=2, lr=lr) for lr in (0.05, 0.02, 0.01)]
    results = lockstep.stacked(methods, problems, seeds)
    for i, (models, accounts) in enumerate(results):
        expected = lockstep.alone(methods[i], problems[i], seeds[i])
        torch.testing.assert_close(models, expected[0], rtol=0, atol=1e-9)
        assert torch.equal(accounts, expected[1])


@pytest.mark.parametrize("faults", [Faults(drop=0.4, nan=0.3), Faults(drop=1.0)])
def test_faults_in_every_phase_leave_finite_models(faults):
    fed = federation(classification(), faults=faults, fraction=0.8)
    state = run(Perm(**SHORT), fed, 20)
    assert torch.isfinite(personal_models(Perm(**SHORT), fed, state)).all()
    weights = Perm(**SHORT).results(state)["mixing"].sum(1)
    torch.testing.assert_close(weights, torch.ones_like(weights))
    assert state.trying == (faults.drop == 1.0)  # nobody was heard: the trial goes on
