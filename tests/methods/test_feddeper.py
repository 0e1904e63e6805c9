"""FedDeper against rounds by hand, and FedAvg."""

import warnings

import pytest
import torch
from torch import nn

from fedkin.core.problem import Problem
from fedkin.errors import DivergedError, FedkinWarning
from fedkin.methods import FedAvg, FedDeper
from fedkin.runs.train import train
from tests.helpers import blobs, federation, further, least_squares, personal_models, quadratic, run
from tests.methods.truth import GRADIENTS, ROUNDING, XS, YS, column


def test_two_rounds_by_hand():
    lr, rho, lam = 0.1, 0.03, 0.75
    method = FedDeper(lr=lr, local_steps=2, rho=rho, lam=lam)
    fed = federation(quadratic(XS, YS, start=0.5))
    state = run(method, fed, 2)
    x, vs = 0.5, [0.5, 0.5]
    for _ in range(2):
        ys = []
        for i, g in enumerate(GRADIENTS):
            y, v = x, vs[i]
            for _ in range(2):
                # the step of y sees v before v's own step
                y = y - lr * g(y) - rho * (v + y - 2 * x)
                v = v - lr * g(v)
            ys.append(y)
            vs[i] = (1 - lam) * v + lam * y
        x = sum(ys) / 2
    torch.testing.assert_close(state.x, torch.tensor([x], dtype=torch.float64))
    torch.testing.assert_close(personal_models(method, fed, state), column(*vs))


def test_without_regulariser_the_global_model_is_that_of_fedavg():
    options = {"batch_size": 3, "reshuffle": False}
    ours = run(FedDeper(lr=0.05, rho=0.0), federation(least_squares(**options), fraction=0.5), 6)
    theirs = run(FedAvg(lr=0.05), federation(least_squares(**options), fraction=0.5), 6)
    torch.testing.assert_close(ours.x, theirs.x, **ROUNDING)


def test_half_takes_half_the_steps_and_as_many_gradients_as_fedavg():
    whole, half, fedavg = (federation(least_squares()) for _ in range(3))
    expected = run(FedDeper(lr=0.05, local_steps=5), whole, 3)
    state = run(FedDeper(lr=0.05, local_steps=10, half=True), half, 3)
    run(FedAvg(lr=0.05, local_steps=10), fedavg, 3)
    torch.testing.assert_close(state.x, expected.x, **ROUNDING)
    assert half.accounts.total("gradients") == fedavg.accounts.total("gradients")


def test_half_of_local_epochs_counts_steps():
    fed = federation(least_squares(batch_size=2))  # 8 samples: 4 steps in a pass
    run(FedDeper(lr=0.05, local_epochs=1, half=True), fed, 1)
    assert fed.accounts.column("gradients").tolist() == [4] * 4


def test_clients_that_are_not_sampled_keep_their_model():
    method, fed = FedDeper(lr=0.05), federation(least_squares(), fraction=0.5)
    state = method.init(fed)
    fed.begin_round(1)
    out = [i for i in range(4) if i not in fed.sample().tolist()]
    before = fed.engine.memory.read("v", torch.arange(4), fed.problem.initial).clone()
    method.round(fed, state)
    after = fed.engine.memory.read("v", torch.arange(4), fed.problem.initial)
    assert torch.equal(before[out], after[out])
    assert not torch.equal(before, after)


# stability ----------------------------------------------------------------------------------


def growth(rho, rounds=400, **options):
    """By what the mean of x - v_i grows in a round, as good as no gradients, 1 of 10 clients."""
    method = FedDeper(lr=1e-12, local_steps=5, rho=rho, **options)
    fed = federation(least_squares(clients=10), fraction=0.1)
    state = run(method, fed, 1)
    state.x = state.x + 1

    def away():
        return float((state.x - personal_models(method, fed, state)).mean())

    before = away()
    further(method, fed, state, rounds)
    return abs(away() / before) ** (1 / rounds)


@pytest.mark.parametrize("rho", [0.005, 0.02])
def test_what_x_has_moved_away_from_personal_models_grows_as_the_docstring_says(rho):
    s = 1 - (1 - rho) ** 5
    assert growth(rho) == pytest.approx((1 + s) * (1 - 0.5 * 0.1), abs=0.01)


def test_left_out_rho_is_the_largest_stable_value():
    # rho*K < p*lam/(1 - p*lam), with three tenths to spare
    fed = federation(least_squares(clients=10), fraction=0.1)
    assert FedDeper(local_steps=5).lean(fed) == pytest.approx(0.7 * 0.05 / 0.95 / 5)
    everybody = federation(least_squares(clients=10))
    assert FedDeper(local_steps=5, lam=0.75).stable_rho(everybody) == pytest.approx(3 / 5)
    half = FedDeper(local_steps=5, half=True)
    assert half.lean(fed) == pytest.approx(0.7 * 0.05 / 0.95 / 3)
    passes = FedDeper(local_epochs=2)  # 8 samples in batches of 2: 4 steps in a pass
    assert passes.lean(federation(least_squares(clients=10, batch_size=2), fraction=0.1)) == (
        pytest.approx(0.7 * 0.05 / 0.95 / 8)
    )
    assert growth(None) < 1 < growth(1.3 * 0.05 / 0.95 / 5)


def pace(rho, lam, steps):
    """How far x moves in a round, in FedAvg's way, where everybody is asked and gradients hardly
    change; after the 50 rounds in which x - v_i settles."""
    moved = []
    for method, settling in ((FedDeper(rho=rho, lam=lam), 50), (FedAvg(), 0)):
        method.lr, method.local_steps = 1e-9, steps
        fed = federation(least_squares())
        state = run(method, fed, settling)
        before = state.x
        moved.append(further(method, fed, state, 1).x - before)
    return float(moved[0] @ moved[1] / moved[1].square().sum())


@pytest.mark.parametrize(("rho", "lam", "steps"), [(0.02, 0.5, 10), (0.05, 0.5, 10), (0.1, 0.9, 4)])
def test_where_everybody_is_asked_x_is_slower_than_fedavgs_as_the_docstring_says(rho, lam, steps):
    s, held = 1 - (1 - rho) ** steps, (1 - lam) / lam
    expected = (2 * s / (rho * steps) - 1 - s * held) / (1 - s * held)
    assert pace(rho, lam, steps) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("lam", [0.5, 0.8, 1.0])
@pytest.mark.parametrize("steps", [1, 10])
def test_left_out_rho_leaves_x_three_quarters_of_fedavgs_pace(lam, steps):
    fed = federation(least_squares())
    method = FedDeper(local_steps=steps, lam=lam)
    assert method.lean(fed) == pytest.approx(lam / (1 + 3 * lam) / steps)
    assert pace(method.lean(fed), lam, steps) >= 0.75


def test_a_rho_that_slows_the_shared_model_down_is_said():
    # of what FedAvg moves, where everybody is asked: 0.79, 0.66, 0.34 and less than nothing
    fed = federation(least_squares())
    assert not FedDeper(rho=0.02).remarks(fed)
    for rho, words in ((0.03, "down to 0.66 of"), (0.05, "down to 0.34 of"), (0.07, "uphill with")):
        (said,) = FedDeper(rho=rho).remarks(fed)
        assert f"rho = {rho:g} s" in said.sentence
        assert words in said.sentence
        assert "4 of 4 clients in a round, 10 local steps and lam = 0.5" in said.sentence
        told = pace(rho, 0.5, 10)
        assert told < 0 if rho == 0.07 else f"{told:.2g}" in said.sentence
    # with half of them asked x is faster than FedAvg's
    half = federation(least_squares(), fraction=0.5)
    assert not FedDeper(rho=0.025).remarks(half)


def test_where_few_are_asked_x_is_faster_than_fedavgs_as_the_docstring_says():
    lr, rho, rounds = 1e-9, 0.7 * 0.1 / 0.9 / 10, 100
    method = FedDeper(lr=lr, local_steps=10, rho=rho)
    fed = federation(quadratic([1.0] * 5, [2.0] * 5), fraction=0.2)  # clients are all alike
    state = run(method, fed, 60)
    before = float(state.x)
    moved = float(further(method, fed, state, rounds).x) - before
    s = 1 - (1 - rho) ** 10
    expected = (2 * s / (rho * 10) - 1 - s) / (1 - s * 0.9 / 0.1)
    assert moved / (2 * lr * 10 * rounds) == pytest.approx(expected, rel=0.1)
    assert method.pace(fed, rho) == pytest.approx(expected)


def test_a_rho_close_to_the_stable_ranges_end_is_said():
    fed = federation(least_squares(clients=10), fraction=0.1)
    (said,) = FedDeper(rho=0.0047).remarks(fed)
    assert "rho = 0.0047 is close to 0.00526" in said.sentence
    assert "moves 7.3 times as far as fedavg's" in said.sentence
    assert not FedDeper(rho=0.0042).remarks(fed)


def test_a_rho_beyond_the_stable_range_is_said_before_the_run_and_where_it_diverges(tmp_path):
    problem = least_squares(clients=10, dtype=torch.float32)  # diverges before 1e39, not 1e309
    words = r"rho = 0\.5 is beyond 0\.00526, .*1 of 10 clients.*10 local steps.*lower rho"
    options = {"fraction": 0.1, "rounds": 2000, "eval_every": 100, "baseline": False}
    with (
        pytest.warns(FedkinWarning, match=words),
        pytest.raises(DivergedError, match=f"not finite; {words}"),
    ):
        train(problem, FedDeper(rho=0.5), folder=tmp_path / "run", **options)
    assert "rho = 0.5 is beyond" in (tmp_path / "run" / "log.txt").read_text().splitlines()[0]
    with warnings.catch_warnings(action="error"):
        train(problem, FedDeper(rho=0.004), **{**options, "rounds": 1})
        train(problem, FedDeper(), **{**options, "rounds": 1})


def test_a_loss_that_grows_a_hundredfold_is_told_while_all_is_finite():
    data = blobs(clients=10)
    for part in (data.train, data.test):  # what is right for half of the clients is wrong elsewhere
        part.y.add_((torch.arange(10) % 2).repeat_interleave(part.sizes)).remainder_(3)
    problem = Problem(nn.Linear(5, 3), data)
    with pytest.warns(FedkinWarning) as told:
        train(problem, FedDeper(rho=0.03, lr=0.1), rounds=150, fraction=0.1, eval_every=10,
              baseline=False)  # fmt: skip
    grown = [str(w.message) for w in told if "has grown" in str(w.message)]
    assert len(grown) == 1
    assert "rho = 0.03 is beyond" in grown[0]
