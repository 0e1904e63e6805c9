"""Newcomers get models as their method says, and nobody else's change."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize

import fedkin
from fedkin.errors import FedkinError
from fedkin.methods import IFCA, FedAvg, FedPer, Perm, PFedHN, State
from fedkin.methods.shared import mixing, shuffling
from fedkin.models import build
from fedkin.reports.export import predict
from fedkin.runs.config import make_config
from fedkin.runs.contender import Contender
from fedkin.runs.folder import RunFolder
from fedkin.runs.newcomers import Newcomers
from fedkin.runs.provenance import complete
from fedkin.runs.training import Trainer
from fedkin.runs.welcoming import welcome
from tests.helpers import blobs, federation, least_squares, run


def test_steps_at_home_are_gradient_descent_from_the_common_model() -> None:
    problem, new = least_squares(4, 8), least_squares(2, 8, seed=5)
    method, fed = FedAvg(lr=0.05), federation(problem)
    state = run(method, fed, 5)
    found = Newcomers(Contender(method, fed, state), new.data, 5, hosts=True)
    assert torch.equal(found.start, state.x.expand(2, -1))
    models = found.fed.look(found.models(3, 0.05))["model"]
    for client in range(2):
        x, y = new.data.train[client]
        w = state.x.clone()
        for _ in range(3):
            w = w - 0.05 * x.T @ (x @ w - y) / len(y)
        assert torch.allclose(models[client], w)


def test_the_first_of_ten_steps_are_those_of_five() -> None:
    problem, new = least_squares(3, 30), least_squares(1, 30, seed=5, batch_size=3)
    problem.batch_size = 3
    method, fed = FedAvg(lr=0.05), federation(problem)
    found = Newcomers(Contender(method, fed, run(method, fed, 2)), new.data, 2, hosts=True)
    first, again = (found.fed.look(found.models(5, 0.05))["model"] for _ in range(2))
    assert torch.equal(first, again)


def test_a_newcomers_weights_minimise_its_own_objective() -> None:
    g = torch.Generator().manual_seed(0)
    others, own = torch.randn(5, 4, generator=g), torch.randn(1, 4, generator=g)
    counts, heard = torch.tensor([9, 20, 5, 40, 11]), torch.tensor([True, True, True, True, False])
    alpha = mixing.weights_of_newcomers(own, torch.tensor([7]), others, counts, heard, 30.0)[0]
    z = np.append((others[:4] - own).square().sum(1).numpy(), 0.0)
    n = np.array([9, 20, 5, 40, 7])
    assert alpha[4] == 0  # it was never heard
    assert torch.allclose(alpha[[0, 1, 2, 3, 5]], best_weights(z, n, 30.0), atol=1e-4)


def test_a_newcomers_lam_is_in_units_of_the_median_distance_of_those_heard() -> None:
    problem, new = least_squares(5, 20), least_squares(1, 20, seed=7)
    method, fed = Perm(lr=0.05, local_steps=2, warm_up=2, lam_rel=1.0), federation(problem)
    s = run(method, fed, 4)
    assert (s.heard == 1).all()
    s.heard[4] = 0
    alpha = method.weights_for(fed, s, federation(new), 3.0)[0]
    x = torch.cat([problem.train.x, new.train.x]).view(6, 20, 3)
    y = torch.cat([problem.train.y, new.train.y]).view(6, 20)
    g = ((x @ s.early - y)[..., None] * x).mean(1).numpy()[[0, 1, 2, 3, 5]]
    z = np.square(g[:, None] - g).sum(2)
    pairs = np.sort(z[:4, :4][np.triu_indices(4, 1)])
    best = best_weights(z[4], np.full(5, 20), 3.0 * pairs[2] * 20)  # of six the lower median
    assert alpha[4] == 0
    assert torch.allclose(alpha[[0, 1, 2, 3, 5]], best, atol=1e-4)


def best_weights(z: np.ndarray, n: np.ndarray, lam: float) -> torch.Tensor:
    """The weights on the simplex with the least sum of a*z + lam*a^2/n, by a general solver."""
    found = minimize(
        lambda a: (a @ z + lam * (a**2 / n).sum()) / z.max(), np.full(5, 0.2),
        bounds=[(0, 1)] * 5, constraints={"type": "eq", "fun": lambda a: a.sum() - 1}, tol=1e-12,
    )  # fmt: skip
    return torch.from_numpy(found.x)


def test_a_tour_visits_every_wanted_place_once() -> None:
    wanted = torch.tensor([[True, False, True, True], [False, True, False, True]])
    plan = shuffling.tours(wanted, np.random.default_rng(0))
    assert plan.shape == (3, 2)
    assert sorted(plan[:, 0].tolist()) == [0, 2, 3]
    assert sorted(plan[:, 1].tolist()) == [-1, 1, 3]


def groups(seed: int, clients: int = 6) -> fedkin.Problem:
    """Clients 0, 2, 4 follow y = x.w, clients 1, 3, 5 the opposite."""
    problem = least_squares(clients, 12, seed=seed)
    w = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    y = problem.data.train.x @ w
    sign = torch.where(torch.arange(clients) % 2 == 0, 1.0, -1.0).repeat_interleave(12)
    part = replace(problem.data.train, y=y * sign)
    return problem.with_data(replace(problem.data, train=part, test=part), "cpu")


@pytest.mark.parametrize("hosts", [True, False])
def test_perms_newcomer_learns_from_its_kin(hosts: bool) -> None:
    method, fed = Perm(lr=0.1, warm_up=2), federation(groups(0))
    state = run(method, fed, 40)
    everybody = torch.arange(fed.size)
    before = state.v.read(everybody).clone()
    found = Newcomers(Contender(method, fed, state), groups(9, 2).data, 40, hosts)
    truth = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    assert torch.allclose(found.start, torch.stack([truth, -truth]), atol=0.4)
    assert torch.equal(state.v.read(everybody), before)


def test_a_cluster_methods_newcomer_gets_the_nearest_cluster() -> None:
    method, fed = IFCA(clusters=2), federation(groups(0))
    models = torch.tensor([[-1.0, 2.0, -0.5], [1.0, -2.0, 0.5]], dtype=torch.float64)
    contender = Contender(method, fed, State(models=models, cluster=torch.zeros(6).long()))
    found = Newcomers(contender, groups(9, 2).data, 1, hosts=True)
    assert torch.equal(found.start, models.flip(0))


def test_a_hypernetworks_newcomer_gets_an_embedding_of_its_own() -> None:
    """Of a network that makes v*w, from v = 0: the newcomer's v has the sign of its kin's."""
    w = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    state = State(
        v=torch.tensor([[1.0], [-1.0]] * 3, dtype=torch.float64),
        inner=torch.tensor([[1.0], [-1.0]], dtype=torch.float64),
        inner_bias=torch.full((2,), 0.01, dtype=torch.float64),
        outer=torch.cat([w, -w]), outer_bias=torch.zeros(3, dtype=torch.float64),
    )  # fmt: skip
    before = state.v.clone()
    method, fed = PFedHN(lr=0.1, server_lr=0.2, embedding=1, hidden=2), federation(groups(0))
    found = Newcomers(Contender(method, fed, state), groups(9, 2).data, 1, hosts=False)
    assert torch.allclose(found.start, torch.cat([w, -w]), atol=0.1)
    assert torch.equal(state.v, before)


def test_a_newcomer_of_shared_layers_starts_with_them_and_a_fresh_head() -> None:
    data = blobs(3)
    problem = fedkin.Problem(build("mlp:4", data.input_shape, 3), data)
    method, fed = FedPer(lr=0.1), federation(problem)
    state = run(method, fed, 3)
    (model,) = Newcomers(Contender(method, fed, state), blobs(1), 3, hosts=False).start
    shared = len(state.x)
    assert torch.equal(model[:shared], state.x)
    assert torch.equal(model[shared:], problem.initial[0, shared:])


# from the run folder --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a table of three sites, and the table of a fourth."""
    folder, rng = tmp_path_factory.mktemp("newcomer"), np.random.default_rng(0)

    def table(name: str, rows: int) -> pd.DataFrame:
        x = rng.normal(3, 2, size=(rows, 2))
        frame = pd.DataFrame(x, columns=["a", "b"]).assign(site=name)
        frame["colour"] = rng.choice(["red", "blue"], rows)
        return frame.assign(ill=np.where(x[:, 0] > x[:, 1], "yes", "no"))

    pd.concat([table(name, 40) for name in "abc"]).to_csv(folder / "three.csv", index=False)
    table("d", 40).drop(columns="site").to_csv(folder / "d.csv", index=False)
    data = {"name": str(folder / "three.csv"), "client_column": "site", "target_column": "ill"}
    values = {"method": "perm", "rounds": 20, "model": {"name": "linear"}, "data": data,
              "options": {"lr": 0.1}, "baseline": False}  # fmt: skip
    config = make_config(values)
    clients = config.make_data()
    kept = RunFolder.create(folder / "run", complete(config, clients))
    Trainer(config.make_problem(clients), config.make_method(), config.settings(), kept).run()
    kept.close()
    return folder


def digest(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(p): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in files
        if "newcomers" not in p.parts and p.name != ".lock"
    }


def test_a_newcomer_gets_a_folder_that_predict_takes(trained: Path) -> None:
    before = digest(trained / "run")
    found = welcome(trained / "run", trained / "d.csv", "clinic d")
    assert digest(trained / "run") == before
    assert found.hosts
    assert found.table["steps"].tolist() == ["0", "1", "5", "10", "alone"]
    assert found.table["test_samples"].tolist() == [10] * 5
    own = fedkin.open_run(found.folder)
    said = predict(own, 0, trained / "d.csv")
    truth = pd.read_csv(trained / "d.csv")["ill"]
    assert (said["prediction"] == truth).mean() > 0.85
    listed = fedkin.open_run(trained / "run").inputs.clients
    assert listed == ("a", "b", "c")


def test_without_the_hosts_data_it_learns_from_models(trained: Path) -> None:
    (trained / "three.csv").rename(trained / "moved.csv")
    try:
        found = welcome(trained / "run", trained / "d.csv", "later", steps=3)
    finally:
        (trained / "moved.csv").rename(trained / "three.csv")
    assert not found.hosts
    assert found.table["steps"].tolist() == ["0", "1", "3", "alone"]


def test_what_is_wrong_is_said_plainly(trained: Path) -> None:
    run_, d = trained / "run", trained / "d.csv"
    with pytest.raises(FedkinError, match="a client 'a' already"):
        welcome(run_, d, "a")
    with pytest.raises(FedkinError, match="cannot name a site"):
        welcome(run_, d, "../x")
    with pytest.raises(FedkinError, match=r"not a \.csv"):
        welcome(run_, trained / "nothing.csv", "e")
    odd = pd.read_csv(d).assign(ill="perhaps")
    odd.to_csv(trained / "odd.csv", index=False)
    with pytest.raises(FedkinError, match="unknown class 'perhaps'"):
        welcome(run_, trained / "odd.csv", "e")
    odd.drop(columns="a").to_csv(trained / "odd.csv", index=False)
    with pytest.raises(FedkinError, match="no column 'a'"):
        welcome(run_, trained / "odd.csv", "e")
    assert not (run_ / "newcomers" / "e").exists()


def test_clients_kept_out_are_judged_as_newcomers(trained: Path) -> None:
    data = {"name": str(trained / "three.csv"), "client_column": "site", "target_column": "ill",
            "unseen": 0.3}  # fmt: skip
    clients = fedkin.load(fedkin.DataConfig(**data), 0)
    assert clients.newcomers is not None
    assert len(clients.names) == 2
    assert set(clients.names) | set(clients.newcomers.names) == {"a", "b", "c"}
    assert float(clients.train.x[:, 0].mean()) == pytest.approx(0, abs=1e-5)  # scaled without them
    assert abs(float(clients.newcomers.train.x[:, 0].mean())) > 1e-4
    problem = fedkin.Problem(build("linear", clients.input_shape, 2), clients)
    found = fedkin.train(problem, FedAvg(lr=0.1), rounds=5, baseline=False).newcomers
    assert found["client"].unique().tolist() == list(clients.newcomers.names)
    assert found["steps"].tolist() == ["0", "1", "5", "10", "alone"]
    assert found["loss"].notna().all()
