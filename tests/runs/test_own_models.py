"""Models of clients' own: in configs, in run folders, and what they do not go with."""

from pathlib import Path

import pytest
import torch
from torch import nn

from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg, Perm, PermModels
from fedkin.models import build
from fedkin.reports.export import export
from fedkin.runs.config import RunConfig, make_config, read_config
from fedkin.runs.folder import RunFolder
from fedkin.runs.options import parse
from fedkin.runs.own_models import keep_models, read_models, scores_by_model
from fedkin.runs.plugins import refuse_brought
from fedkin.runs.sites.plan import read_serve_config
from fedkin.runs.stored import open_run
from fedkin.runs.train import train
from fedkin.runs.training import Settings, Trainer
from fedkin.toml import read_toml
from tests.helpers import blobs, goes_on_to_the_bit

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, input_shape, outputs):
        super().__init__(nn.Linear(input_shape[0], 20), nn.Tanh(), nn.Linear(20, outputs))
"""
SHORT = {"warm_up": 1, "trial": 2, "local_steps": 2}


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Options of a run in which client 0 has a class of a file beside the table, 1 an MLP."""
    (tmp_path / "nets.py").write_text(NET)
    (tmp_path / "clients.csv").write_text('client,net\n0,nets.py:Net\n1,"mlp:12,6"\n2,\n7,cnn\n')
    return [
        "--data=synthetic", "--num-clients=3", "--samples=20",
        f"--client-table={tmp_path}/clients.csv",
        "--model-column=net", "--model=linear", "--rounds=4", "--eval-every=4",
        "--strategy=stacked", "--warm-up=1", "--trial=2", "--local-steps=2",
    ]  # fmt: skip


def config_of(method: str, words: list[str]) -> RunConfig:
    return make_config({"method": method, **parse(method, words)})


def trainer_of(config: RunConfig, path: Path) -> Trainer:
    folder = RunFolder.create(path, config.to_toml())
    return Trainer(
        config.make_problem(config.make_data()), config.make_method(), config.settings(), folder
    )


def test_a_column_of_the_client_table_names_models(words, tmp_path):
    config = config_of("perm", words)
    assert config.method == "perm-models"
    net = f"{tmp_path}/nets.py:Net"
    assert config.model.client_models == {"0": net, "1": "mlp:12,6", "7": "cnn"}
    assert list(config.files) == [f"{tmp_path}/nets.py"]
    problem = config.make_problem(config.make_data())
    assert problem.architectures.names == [net, "mlp:12,6", ""]

    run = trainer_of(config, tmp_path / "run").run()
    written = read_config(tmp_path / "run" / "config.toml")
    assert written.model == config.model  # it does not need the table again
    table = read_models(tmp_path / "run")
    assert table["model"].tolist() == ["nets.Net", "mlp:12,6", "common"]
    parts = [sum(p.numel() for p in run.personal.at(i).parameters()) for i in range(3)]
    assert table["parameters"].tolist() == parts
    scores = scores_by_model(tmp_path / "run", run.metric)
    assert scores["clients"].tolist() == [1, 1, 1]
    assert scores[["score", "alone"]].notna().all(axis=None)

    stored = open_run(tmp_path / "run")
    x = problem.data.test.x[:4]
    for client in range(3):
        module = stored.personal.at(client)
        torch.testing.assert_close(module(x), run.personal.at(client)(x))
    assert type(stored.personal.at(0)).__name__ == "Net"
    assert export(stored, 0, str(tmp_path / "own.safetensors")).is_file()

    (tmp_path / "nets.py").write_text(NET + "# another day\n")
    with pytest.raises(FedkinError, match="has changed since"):
        _ = open_run(tmp_path / "run").personal


def test_code_that_came_with_a_run_folder_is_not_run(words, tmp_path):
    config = config_of("perm", words)
    (tmp_path / "config.toml").write_text(config.to_toml())
    with pytest.raises(FedkinError, match="lies in the run folder"):
        refuse_brought(read_toml(tmp_path / "config.toml"), tmp_path)
    # whatever clients are called
    model = {"client_models": {"data": f"{tmp_path}/nets.py:Net"}}
    with pytest.raises(FedkinError, match="lies in the run folder"):
        refuse_brought({"model": model}, tmp_path)


def test_a_run_that_was_stopped_goes_on_to_the_bit(tmp_path):
    def trainer(name):
        settings = Settings(rounds=5, checkpoint_every=1, eval_every=5, strategy="native:3:1x1")
        folder = RunFolder.create(tmp_path / name, 'method = "perm-models"\n')
        wide = build("mlp:12", (5,), 3, seed=1)
        models = {"0": wide, "1": wide, "3": "mlp:8,8"}
        problem = Problem(build("linear", (5,), 3), blobs(), models=models)
        return Trainer(problem, PermModels(**SHORT), settings, folder)

    goes_on_to_the_bit(trainer, [3], "mixing.csv", "sharing.csv", "clients.csv")


def test_in_python_models_are_modules_classes_or_names(tmp_path):
    class Own(nn.Linear):
        def __init__(self, input_shape, outputs):
            super().__init__(input_shape[0], outputs)

    models = {"0": build("mlp:9", (5,), 3), "1": Own, "2": "mlp:9", "3": "mlp:9"}
    common = build("linear", (5,), 3)
    problem = Problem(common, blobs(), models=models)
    run = train(problem, "perm", rounds=2, folder=tmp_path / "run", **SHORT)
    assert read_models(tmp_path / "run")["model"].tolist() == [
        "Sequential", "Own", "mlp:9", "mlp:9", "common", "common",
    ]  # fmt: skip
    x = problem.data.test.x[:3]
    again = open_run(tmp_path / "run", common, models)
    for name in problem.data.names:
        torch.testing.assert_close(again.personal[name](x), run.personal[name](x))
    with pytest.raises(FedkinError, match=r"open_run\(path, module, models\)"):
        _ = open_run(tmp_path / "run", common).personal
    other = Problem(common, blobs(), models={**models, "4": "mlp:9"})
    with pytest.raises(FedkinError, match="other models than"):
        keep_models(tmp_path / "run", other)


def test_many_clients_models_are_in_one_file_for_each_architecture(tmp_path, monkeypatch):
    monkeypatch.setattr("fedkin.runs.models.MANY", 2)
    problem = Problem(build("linear", (5,), 3), blobs(), models={"1": "mlp:9", "4": "mlp:9"})
    run = train(problem, "local", rounds=2, folder=tmp_path / "run", local_steps=2)
    files = {path.name for path in (tmp_path / "run" / "models").iterdir()}
    assert files == {"personal-rate1.0.safetensors", "personal-model1.safetensors"}
    again = open_run(tmp_path / "run", build("linear", (5,), 3), {"1": "mlp:9", "4": "mlp:9"})
    x = problem.data.test.x[:3]
    for place in (0, 1, 4):
        torch.testing.assert_close(again.personal.at(place)(x), run.personal.at(place)(x))


def test_what_models_of_clients_own_do_not_go_with(words, tmp_path):
    with pytest.raises(FedkinError, match=r"'ditto' needs one architecture .* local, perm"):
        config_of("ditto", words)
    with pytest.raises(FedkinError, match="leave rates out"):
        config_of("perm", [*words, "--rates=1,1/2"])
    with pytest.raises(FedkinError, match="give one as client_table"):
        config_of("perm", ["--model-column=net"])
    with pytest.raises(FedkinError, match="unknown client column 'nets'"):
        config_of("perm", [w.replace("=net", "=nets") for w in words])
    config = make_config({"method": "perm", "model": {"client_models": {"x": "mlp"}}})
    with pytest.raises(FedkinError, match="unknown client in client_models 'x'"):
        config.make_problem(blobs())
    problem = Problem(build("linear", (5,), 3), blobs(), models={"0": "mlp:9"})
    with pytest.raises(FedkinError, match="use 'perm-models'"):
        train(problem, Perm(), rounds=1)
    with pytest.raises(FedkinError, match="'fedavg' needs one architecture"):
        train(problem, FedAvg(), rounds=1)
    with pytest.raises(FedkinError, match="use the engine embedded"):
        train(problem, "perm", rounds=1, engine="wire")
    path = tmp_path / "serve.toml"
    path.write_text('method = "perm"\n[model]\nclient_models = {a = "mlp"}\n')
    with pytest.raises(FedkinError, match="for clients in one place"):
        read_serve_config(path)
