"""PERM with very many clients: neighbours, sparse weights, models in files. What is "very
many" is made small here."""

import numpy as np
import pytest
import torch

from fedkin.core import tables
from fedkin.core.problem import Problem
from fedkin.methods import Perm, perm_kin
from fedkin.methods.shared import mixing, neighbours, shuffling
from fedkin.models import build
from fedkin.runs.folder import RunFolder
from fedkin.runs.newcomers import Newcomers
from fedkin.runs.training import Settings, Trainer
from fedkin.runs.who import read_mixing, who_helps
from tests.helpers import blobs, federation, goes_on_to_the_bit, least_squares, run

CLIENTS = 30


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(perm_kin, "MANY", 5)
    monkeypatch.setattr(shuffling, "DENSE", 5)


def numpy_weights(z, n, lam):
    """alpha_j = max(0, (t - z_j)*n_j/(2 lam)), t by bisection so that they sum to 1."""
    low, high = z.min(), z.min() + 2 * lam / n[z.argmin()] + 1e-300
    for _ in range(200):
        t = (low + high) / 2
        total = (np.maximum(0, t - z) * n / (2 * lam)).sum()
        low, high = (t, high) if total < 1 else (low, t)
    return np.maximum(0, t - z) * n / (2 * lam)


def grouped(n, groups, noise, d=12, seed=0):
    random = np.random.default_rng(seed)
    centres = random.normal(size=(groups, d))
    g = centres[np.arange(n) % groups] + noise * random.normal(size=(n, d))
    return torch.from_numpy(g.astype(np.float32))


# neighbours and weights --------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.1, 3.0])
def test_the_ten_nearest_are_found(noise):
    g = grouped(601, 20, noise)  # which does not divide
    kin, z = neighbours.nearest(g, 11)
    apart = ((g[:, None].numpy() - g[None].numpy()) ** 2).sum(2)
    np.testing.assert_allclose(z.numpy(), np.take_along_axis(apart, kin.numpy(), 1), atol=1e-4)
    assert torch.equal(kin[:, 0], torch.arange(601))
    np.fill_diagonal(apart, np.inf)
    true = np.argsort(apart, axis=1)[:, :10]
    assert np.mean(kin[:, 1:].numpy() == true) > 0.999  # ties but for single precision


def test_alike_rows_are_each_others_neighbours_and_never_their_own():
    g = grouped(6, 3, 0.0).repeat(2, 1)
    kin, z = neighbours.nearest(g, 4)
    for i, (own, *others) in enumerate(kin.tolist()):
        assert own == i
        assert {i, *others} == {j for j in range(12) if j % 3 == i % 3}
    assert z.max() < 1e-6
    assert neighbours.nearest(g, 99)[0].sort(1).values.tolist() == [list(range(12))] * 12


def test_nobody_is_kin_to_too_many():
    g = torch.cat([torch.zeros(1, 4), torch.eye(4).repeat(30, 1) + 0.01 * torch.randn(120, 4)])
    kin, z = neighbours.nearest(g, 8)
    left = neighbours.uncrowded(kin, z, 6)
    named = torch.bincount(kin[left.isfinite()], minlength=len(g))
    assert named.max() <= 7  # and oneself
    assert (left[:, 0] == 0).all()
    kept = left.isfinite()
    assert torch.equal(left[kept], z[kept])


def test_sparse_weights_are_the_closed_form_for_the_same_neighbours():
    fed = federation(least_squares(CLIENTS, samples=6, seed=1))
    state = run(Perm(warm_up=0, lam_rel=0.7, nearest=6), fed, 1)
    assert state.alpha.shape == (1, CLIENTS, 6)
    g, n = state.g.numpy(), fed.samples.numpy().astype(float)
    lam = 0.7 * mixing.median_of_some(state.g) * n.mean()
    kin, z = Perm(nearest=6).nearby(state)
    assert torch.equal(kin, state.kin)
    for i in range(CLIENTS):
        near = kin[i].numpy()[z[i].isfinite().numpy()]
        expected = numpy_weights(((g[near] - g[i]) ** 2).sum(1), n[near], lam)
        found = state.alpha[0, i][z[i].isfinite()].numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_median_of_some_pairs_is_nearly_that_of_all():
    g = grouped(300, 5, 1.0).double()
    every = mixing.scale_free(mixing.squared_distances(g), torch.ones(1), 1.0)
    assert mixing.median_of_some(g) == pytest.approx(every, rel=0.02)


def test_a_client_that_was_not_heard_learns_alone_and_nobody_from_it():
    method, fed = Perm(warm_up=0, lam_rel=1.0, nearest=6), federation(least_squares(CLIENTS))
    state = run(method, fed, 1)
    state.heard[3] = 0
    method.weigh(fed, state, (1.0,), None)
    alpha = method.results(state)["mixing"].to_dense()
    assert alpha[3, 3] == alpha[:, 3].sum() == 1
    torch.testing.assert_close(alpha.sum(1), torch.ones(CLIENTS).double())


# visits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nearest", [2, 4, 8])
def test_an_epoch_has_as_many_visits_as_there_are_weights(nearest):
    method = Perm(warm_up=0, lam_rel=50.0, nearest=nearest, local_steps=4, lr=0.01)
    fed = federation(least_squares(CLIENTS, seed=2))
    state = run(method, fed, 1)
    weights = int((state.alpha > 0).sum())
    assert len(state.plan) == pytest.approx(weights, abs=CLIENTS / 2)  # whole visits per model
    for number in range(state.length):
        now = state.plan[state.plan[:, 1] == number]
        assert len(now[:, 2].unique()) == len(now[:, 3].unique()) == len(now)
    before = fed.accounts.total("gradients")
    while state.hop < state.length:
        fed.begin_round(fed.round + 1)
        method.round(fed, state)
    epoch = len(state.plan) * 4 * state.share  # visits, each of so many steps
    first = int((state.plan[:, 1] == 0).sum()) * 4 * state.share
    assert fed.accounts.total("gradients") - before == pytest.approx(epoch - first, rel=0.1)


# models in files ---------------------------------------------------------------------------


def classification():
    return Problem(build("mlp:8", (5,), 3, seed=1), blobs(clients=9, samples=20), batch_size=6)


def trainer(place, memory, rounds=8, **options):
    settings = Settings(
        rounds=rounds, checkpoint_every=1, eval_every=rounds, fraction=0.8, baseline=False,
        strategy="native:3:1x1", memory=memory,
    )  # fmt: skip
    method = Perm(warm_up=1, trial=3, local_steps=3, lr=0.05, nearest=3, sketch=16, **options)
    return Trainer(classification(), method, settings, RunFolder.create(place, 'method = "perm"\n'))


@pytest.mark.parametrize(("lam_rel", "less"), [(None, "5KB"), (1.0, 2500)])
def test_models_in_files_are_those_in_memory_to_the_bit(lam_rel, less, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "READ_BYTES", 1000)  # three rows at a time
    found = []
    for memory in (None, less):
        done = trainer(tmp_path / str(memory), memory, lam_rel=lam_rel)
        done.run()
        state = done.contenders["method"].state
        assert state.v.known.any()
        assert state.v.in_file == (memory is not None)
        found.append(sorted((tmp_path / str(memory) / "models").iterdir()))
    for ram, file in zip(*found, strict=True):
        assert ram.read_bytes() == file.read_bytes()


def test_a_run_with_models_in_files_goes_on_to_the_bit(tmp_path):
    goes_on_to_the_bit(lambda name: trainer(tmp_path / name, "5KB"), (2, 4, 6), "sharing.csv")


def test_a_table_is_read_back_from_its_state():
    room = tables.Room(tables.Budget(0))
    table = room.table(6, torch.arange(3.0))
    table.write(torch.tensor([1, 4]), torch.ones(2, 3))
    state = {k: torch.cat(list(v.pieces)) if k == "values" else v for k, v in table.state().items()}
    again = tables.Room().table(6, torch.zeros(3))
    assert again.takes(state)
    again.restore(state)
    assert table.in_file
    assert not again.in_file
    places = torch.tensor([4, 0, -1, 1])
    rows = torch.stack([torch.ones(3), torch.arange(3.0), torch.full((3,), 7.0), torch.ones(3)])
    for one in (table, again):
        assert torch.equal(one.at(places, torch.full((1, 3), 7.0)).read(), rows)
    assert not again.takes({**state, "start": torch.zeros(1, 4)})
    assert not again.takes({})


# what is left behind -----------------------------------------------------------------------


def test_a_run_leaves_pairs_in_place_of_a_matrix(tmp_path):
    done = trainer(tmp_path / "run", None, lam_rel=1.0)
    result = done.run()
    assert not (tmp_path / "run" / "mixing.csv").exists()
    assert not (tmp_path / "run" / "who_helps_whom.png").exists()
    alpha, names = read_mixing(tmp_path / "run")
    assert len((tmp_path / "run" / "helpers.csv").read_text().splitlines()) <= 1 + 3 * 9
    torch.testing.assert_close(alpha.to_dense(), result.mixing.to_dense())
    helpers = who_helps(alpha, names, 2)
    assert helpers["weight"].sum() == pytest.approx(1)
    assert len(helpers) <= 3
    assert result.plot() is not None


@pytest.mark.parametrize("hosts", [True, False])
def test_newcomers_learn_from_the_nearest(hosts, tmp_path):
    done = trainer(tmp_path / "run", 2500, lam_rel=1.0)
    done.run()
    found = Newcomers(done.contenders["method"], blobs(clients=2, samples=20), 8, hosts)
    assert torch.isfinite(found.start).all()
