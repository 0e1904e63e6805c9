"""pFedKM against a round by hand, pFedMe, and planted clusters."""

import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.metrics import adjusted_rand_score

from fedkin import train
from fedkin.core.faults import Faults
from fedkin.methods import PFedKM, PFedMe
from tests.helpers import federation, further, least_squares, personal_models, quadratic, run
from tests.methods.truth import ROUNDING, column, planted, planted_digits

# f_i = (v - y_i)^2/2: two pairs of clients far apart
XS, YS = [1.0] * 4, [5.0, 5.5, -5.0, -4.0]
SOLVER = {"lr": 0.1, "local_steps": 2, "lam": 2.0, "inner_lr": 0.2, "inner_steps": 3}


def by_hand(x, theta, y):
    """A client's w and theta after a round."""
    w = x
    for _ in range(2):
        for _ in range(3):
            theta = theta - 0.2 * ((theta - y) + 2.0 * (theta - w))
        w = w - 0.1 * 2.0 * (w - theta)
    return w, theta


def test_two_rounds_by_hand():
    method, fed = PFedKM(**SOLVER, clusters=2, beta=0.6), federation(quadratic(XS, YS))
    state = run(method, fed, 2)
    groups, thetas = {True: 0.0, False: 0.0}, [0.0] * 4  # by the sign of y
    for _ in range(2):
        results = [by_hand(groups[y > 0], t, y) for t, y in zip(thetas, YS, strict=True)]
        ws, thetas = zip(*results, strict=True)
        for sign, (a, b) in ((True, ws[:2]), (False, ws[2:])):
            groups[sign] = (1 - 0.6) * groups[sign] + 0.6 * (a + b) / 2
    torch.testing.assert_close(personal_models(method, fed, state), column(*thetas))
    torch.testing.assert_close(state.groups[state.cluster], column(*[groups[y > 0] for y in YS]))


def test_diagnostics_of_a_round():
    method, fed = PFedKM(**SOLVER, clusters=2), federation(quadratic(XS, YS))
    state = run(method, fed, 3)
    first, second = state.groups[:, 0].tolist()
    assert adjusted_rand_score([0, 0, 1, 1], fed.records["cluster"]) == 1.0
    torch.testing.assert_close(fed.records["group_distance"].tolist(), [abs(first - second)])
    assert fed.records["kmeans_iterations"] >= 1
    assert fed.records["kmeans_seconds"] > 0


def test_one_cluster_is_pfedme():
    options = {"batch_size": 3, "reshuffle": False}
    a, b = (federation(least_squares(**options), fraction=0.5) for _ in range(2))
    km, me = PFedKM(clusters=1, beta=0.7), PFedMe(beta=0.7)
    ours, theirs = run(km, a, 8), run(me, b, 8)
    torch.testing.assert_close(ours.groups[0], theirs.x, **ROUNDING)
    torch.testing.assert_close(
        personal_models(km, a, ours), personal_models(me, b, theirs), **ROUNDING
    )


def test_groups_keep_their_numbers():
    problem, _ = planted()
    method, fed = PFedKM(lr=0.05, lam=5.0, clusters=3), federation(problem, fraction=0.8)
    state = run(method, fed, 15)
    settled = state.cluster
    for number in range(16, 25):
        fed.begin_round(number)
        method.round(fed, state)
        assert torch.equal(state.cluster, settled)


def test_it_recovers_three_planted_clusters():
    problem, truth = planted()
    method, fed = PFedKM(lr=0.05, lam=5.0, clusters=3), federation(problem)
    state = run(method, fed, 10)
    assert adjusted_rand_score(truth, state.cluster) == 1.0
    assert torch.equal(method.results(state)["cluster"], state.cluster)


@pytest.mark.parametrize("seed", range(3))
def test_it_recovers_clients_that_permute_their_labels_alike(seed):
    problem, truth = planted_digits(seed)
    fed = federation(problem, seed=seed)
    state = run(PFedKM(lr=0.005, lam=15.0, inner_lr=0.05, clusters=3), fed, 5)
    assert adjusted_rand_score(truth, state.cluster) == 1.0


def test_clients_that_do_not_answer_keep_their_cluster():
    method, fed = PFedKM(**SOLVER, clusters=2), federation(quadratic(XS, YS))
    state = run(method, fed, 1)
    groups, cluster = state.groups, state.cluster
    for faults in (Faults(nan=1.0), Faults(drop=1.0)):
        fed.faults = faults
        fed.begin_round(2)
        method.round(fed, state)
        assert torch.equal(state.groups, groups)
        assert torch.equal(state.cluster, cluster)


def test_fewer_uploads_than_groups_join_the_nearest():
    method, fed = PFedKM(**SOLVER, clusters=2), federation(quadratic(XS, YS))
    state = run(method, fed, 3)
    cluster, groups = state.cluster, state.groups
    fed.fraction = 0.25
    fed.begin_round(4)
    (only,) = fed.sample().tolist()
    method.round(fed, state)
    assert torch.equal(state.cluster, cluster)
    moved = (state.groups != groups)[:, 0]
    assert moved.tolist() == [k == cluster[only] for k in range(2)]


def test_clients_without_a_group_work_from_the_mean_of_the_groups():
    fed = federation(quadratic(XS, YS), faults=Faults(drop=0.3), seed=2)
    method = PFedKM(**SOLVER, clusters=2)
    state = run(method, fed, 1)
    (new,) = (state.cluster == -1).nonzero()[:, 0].tolist()
    mean = state.groups.mean().item()
    assert mean != 0
    assert personal_models(method, fed, state)[new].item() == mean
    fed.faults = Faults()
    fed.begin_round(2)
    method.round(fed, state)
    _, theta = by_hand(mean, mean, YS[new])
    torch.testing.assert_close(personal_models(method, fed, state)[new].item(), theta)
    assert adjusted_rand_score([0, 0, 1, 1], state.cluster) == 1.0


def test_everybody_is_asked_once_from_the_initial_model_before_groups_are_found():
    method, fed = PFedKM(**SOLVER, clusters=2), federation(quadratic(XS, YS), fraction=0.5)
    state = run(method, fed, 1)
    assert state.groups.eq(0).all()
    assert state.cluster.eq(-1).all()
    further(method, fed, state, 1)
    ws = [by_hand(0.0, 0.0, y)[0] for y in YS]
    expected = [sum(pair) / 2 for pair in (ws[:2], ws[:2], ws[2:], ws[2:])]
    torch.testing.assert_close(state.groups[state.cluster], column(*expected))
    assert len(state.last) == 0  # what was kept to find groups is needed no more


def test_a_group_nobody_of_which_was_asked_stays():
    problem, truth = planted()  # rounds of three clients rarely see all three groups
    method, fed = PFedKM(lr=0.05, lam=5.0, clusters=3), federation(problem, fraction=0.2)
    state, unasked = run(method, fed, 5), 0
    for _ in range(30):
        before, cluster = state.groups, state.cluster
        further(method, fed, state, 1)
        idle = sorted(set(range(3)) - set(cluster[fed.sample()].tolist()))
        assert torch.equal(state.groups[idle], before[idle])
        assert adjusted_rand_score(truth, state.cluster) == 1.0
        unasked += len(idle)
    assert unasked > 10


@pytest.mark.parametrize("make", [planted, planted_digits])
@pytest.mark.parametrize("fraction", [0.2, 0.4, 0.6])
def test_planted_groups_are_found_and_kept_however_few_take_part(make, fraction):
    problem, truth = make(seed=3)
    solver = {"lr": 0.05, "lam": 5.0} if make is planted else {"inner_lr": 0.05, "lr": 0.005}
    fed = federation(problem, fraction=fraction, seed=3)
    state = run(PFedKM(**solver, clusters=3), fed, 25)
    assert adjusted_rand_score(truth, state.cluster) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("make", [planted, planted_digits])
@pytest.mark.parametrize("fraction", [0.2, 0.4, 0.6, 1.0])
def test_planted_groups_are_kept_over_sixty_rounds_with_ten_seeds(make, fraction):
    solver = {"lr": 0.05, "lam": 5.0} if make is planted else {"inner_lr": 0.05, "lr": 0.005}
    for seed in range(10):
        problem, truth = make(seed=seed)
        fed = federation(problem, fraction=fraction, seed=seed)
        state = run(PFedKM(**solver, clusters=3), fed, 60)
        assert adjusted_rand_score(truth, state.cluster) == 1.0


def test_kmeans_may_start_anew_in_every_round():
    problem, truth = planted()
    method, fed = PFedKM(lr=0.05, lam=5.0, clusters=3, anew=True), federation(problem, fraction=0.4)
    state = run(method, fed, 10)
    cluster = state.cluster
    assert adjusted_rand_score(truth, cluster) == 1.0
    # the group models are the means of everybody's last upload, whoever was asked
    means = torch.stack([state.last[cluster == k].mean(0) for k in range(3)])
    torch.testing.assert_close(state.groups, means)
    further(method, fed, state, 3)
    assert torch.equal(state.cluster, cluster)  # the numbers stay, too
    # from two centres in one group and one between the others k-means would not find out
    a, b, c = state.groups
    state.groups = torch.stack([a, a + 1e-3, (b + c) / 2])
    everybody = torch.arange(fed.size)
    method.regroup(fed, state, everybody, state.last.clone(), fed.size)
    assert adjusted_rand_score(truth, state.cluster) == 1.0


def test_a_cluster_map_is_drawn(tmp_path):
    problem, _ = planted_digits()
    train(problem, PFedKM(), folder=tmp_path / "run", rounds=3, fraction=0.5, baseline=False)
    picture = Image.open(tmp_path / "run" / "cluster.png")
    assert min(picture.size) > 200
    rows = pd.read_csv(tmp_path / "run" / "diagnostics" / "cluster.csv")
    assert rows.shape == (3, 1 + 24)
    assert set(rows.iloc[-1, 1:]) <= {-1, 0, 1, 2}
