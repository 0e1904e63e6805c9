"""Models with batch norms or frozen parts, opened again: they answer as they did when judged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedkin
from fedkin.methods import FedAvg
from fedkin.runs.config import RunConfig, make_config
from fedkin.runs.folder import RunFolder
from fedkin.runs.newcomers import Newcomers
from fedkin.runs.provenance import complete
from fedkin.runs.settings import Settings
from fedkin.runs.training import Trainer
from fedkin.runs.welcoming import newcomer_data, welcome
from tests.zoo import zoo_data, zoo_problem

NETS = """
from torch import nn

def normed(input_shape, outputs):
    return nn.Sequential(nn.Linear(*input_shape, 6), nn.BatchNorm1d(6), nn.ReLU(),
                         nn.Linear(6, outputs))

def frozen(input_shape, outputs):
    net = normed(input_shape, outputs)
    net[0].requires_grad_(False)
    return net
"""


def trained(folder: Path, **changes: object) -> RunConfig:
    """A finished run on a table of three sites, with the table of a fourth beside it."""
    rng = np.random.default_rng(0)

    def table(site: str, rows: int) -> pd.DataFrame:
        x = rng.normal(2, 3, size=(rows, 3))
        return pd.DataFrame(x, columns=list("pqr")).assign(site=site, target=x[:, 0] > x[:, 1])

    pd.concat([table(s, n) for s, n in zip("abc", (24, 32, 40), strict=True)]).to_csv(
        folder / "three.csv", index=False
    )
    table("d", 40).drop(columns="site").to_csv(folder / "d.csv", index=False)
    (folder / "nets.py").write_text(NETS)
    data = {"name": str(folder / "three.csv"), "client_column": "site", "target_column": "target"}
    config = make_config({
        "method": "fedavg", "rounds": 3, "data": data, "options": {"lr": 0.2}, "baseline": False,
        "strategy": "stacked", **changes,
    })  # fmt: skip
    clients = config.make_data()
    kept = RunFolder.create(folder / "run", complete(config, clients))
    Trainer(config.make_problem(clients), config.make_method(), config.settings(), kept).run()
    kept.close()
    return config


def loss_of(module: nn.Module, examples: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(module(examples[0]), examples[1]))


@pytest.mark.parametrize("hosts", [True, False])
@pytest.mark.parametrize("norm", ["shared", "local", "averaged"])
def test_a_newcomers_model_is_opened_as_it_was_judged(tmp_path, norm: str, hosts: bool) -> None:
    own = {"name": f"{tmp_path / 'nets.py'}:normed", "norm": norm}
    config = trained(tmp_path, model=own)
    if not hosts:
        (tmp_path / "three.csv").unlink()
    found = welcome(tmp_path / "run", tmp_path / "d.csv", "d", steps=4)
    assert found.hosts == hosts
    judged = found.table.set_index("steps")["loss"]["4"]
    stored = fedkin.open_run(tmp_path / "run")
    data = newcomer_data(stored.inputs, tmp_path / "d.csv", "d", config.data, 0.25, config.seed)
    module = fedkin.open_run(found.folder).personal["d"]
    assert loss_of(module, data.test[0]) == pytest.approx(judged, rel=1e-5)
    mean = module[0](data.train[0][0]).mean(0)
    if norm == "averaged":  # of those that took part, in the model before the steps at home
        mean = stored.personal["a"][1].running_mean
        assert torch.equal(mean, stored.personal["b"][1].running_mean)
    torch.testing.assert_close(module[1].running_mean, mean.detach())


def test_averaged_norms_of_newcomers_go_by_those_that_took_part() -> None:
    problem, new = zoo_problem("batch-norm-1d", norm="averaged"), zoo_data("batch-norm-1d", 2)
    settings = Settings(rounds=2, baseline=False, strategy="stacked")
    trainer = Trainer(problem, FedAvg(lr=0.1), settings)
    module = trainer.run().personal.at(0)  # with the mean of all clients' statistics
    found = Newcomers(trainer.contenders["method"], new, 2, hosts=True)
    scores = found.judge((0,), 0.1, 1)
    for client in range(2):
        x, y = new.test[client]
        assert scores["loss"][client] == pytest.approx(loss_of(module, (x.double(), y)))


def test_training_alone_is_the_same_whatever_norms_others_share() -> None:
    """A client that trains alone has no others whose statistics it could know."""
    found = {}
    for norm in ("shared", "averaged", "local"):
        problem = zoo_problem("batch-norm-1d", norm=norm)
        settings = Settings(rounds=2, eval_every=2, strategy="stacked")
        run = Trainer(problem, FedAvg(lr=0.1), settings).run()
        found[norm] = torch.tensor(run.clients["local_loss"].to_numpy())
    torch.testing.assert_close(found["averaged"], found["shared"])
    torch.testing.assert_close(found["local"], found["shared"])


def test_a_run_from_a_file_is_opened_with_the_frozen_parts_that_it_began_with(tmp_path) -> None:
    config = trained(tmp_path, model={"name": f"{tmp_path / 'nets.py'}:frozen"}, seed=3)
    stored = fedkin.open_run(tmp_path / "run")
    judged = stored.clients.query("round == 3")["personal_loss"].tolist()
    for client, examples in enumerate(config.make_data().test):
        assert loss_of(stored.personal.at(client), examples) == pytest.approx(
            judged[client], rel=1e-5
        )
