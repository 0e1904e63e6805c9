"""Code from users' files: what is loaded, what is refused, and what a run remembers of it."""

from __future__ import annotations

import sys
from hashlib import sha256
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from fedkin.errors import FedkinError
from fedkin.methods import registry
from fedkin.runs import plugins, user_code
from fedkin.runs.config import make_config
from fedkin.runs.sites.plan import read_serve_config

NET = """
import torch
from torch import nn
from layers import bend

class Net(nn.Module):
    def __init__(self, input_shape, outputs, width=4):
        super().__init__()
        self.body, self.head = nn.Linear(input_shape[0], width), nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(bend(self.body(x)))

made = nn.Linear(2, 2)

def nothing():
    return 3

def broken(input_shape):
    raise RuntimeError("no such weights")
"""
LAYERS = "import torch\n\n\ndef bend(x):\n    return torch.tanh(x)\n"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "layers.py").write_text(LAYERS)
    path = tmp_path / "mynets.py"
    path.write_text(NET)
    return path


def test_a_model_from_a_file_starts_from_the_seed_and_knows_the_data(net: Path) -> None:
    def weights(seed: int, **args: int) -> torch.Tensor:
        return user_code.make_model(f"{net}:Net", (5,), 3, seed, args).body.weight

    assert weights(1).shape == (4, 5)
    assert weights(1, width=7).shape == (7, 5)
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(
    ("name", "args", "sentence"),
    [
        ("Nett", {}, "no model of that name.*did you mean 'Net'"),
        ("made", {}, "a module made already"),
        ("nothing", {}, "gives a int, not a torch.nn.Module"),
        ("broken", {}, "cannot be made: RuntimeError: no such weights"),
        (
            "Net",
            {"wdth": 3},
            r"unexpected keyword argument 'wdth'.*takes \(input_s",
        ),
    ],
)
def test_what_makes_no_model_is_told_in_a_sentence(net: Path, name, args, sentence) -> None:
    with pytest.raises(FedkinError, match=sentence):
        user_code.make_model(f"{net}:{name}", (5,), 3, 0, args)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import no_such_package", "ModuleNotFoundError in line 1: No module named"),
        ("x = 1\nx = (", "SyntaxError in line 2"),
        ("x = 1\n1 / 0", "ZeroDivisionError in line 2"),
        ("import sys\nsys.exit(3)", "SystemExit in line 2"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_sentence(tmp_path, text, sentence) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    before = set(sys.modules)
    with pytest.raises(FedkinError, match=sentence):
        plugins.load(f"{path}:thing", "method")
    assert not [name for name in set(sys.modules) - before if "bad" in name]


def test_files_that_are_not_there_or_name_nothing(tmp_path) -> None:
    for reference, sentence in (
        (f"{tmp_path}/none.py:Net", "there is no file"),
        ("mynets.py", "write mynets.py:NAME"),
        ("mynets.py:a b", "write mynets.py:NAME"),
    ):
        with pytest.raises(FedkinError, match=sentence):
            make_config({"method": "fedavg", "model": {"name": reference}})


def test_a_config_has_the_checksums_of_files_and_of_what_they_import(net: Path) -> None:
    config = make_config({"method": "fedavg", "model": {"name": f"{net}:Net"}})
    beside = net.with_name("layers.py")
    expected = {str(p): sha256(p.read_bytes()).hexdigest() for p in (beside, net)}
    assert config.files == expected
    beside.write_text(LAYERS + "# changed\n")
    with pytest.raises(FedkinError, match=r"layers.py has changed since .*restore it"):
        make_config(config.model_dump())
    # another choice of model has nothing to do with the file any more
    assert make_config({**config.model_dump(), "model": {"name": "mlp:4"}}).files == {}


@pytest.mark.parametrize("files", ["words", 3, ["a"], True])
def test_checksums_that_are_no_table_are_told(files) -> None:
    with pytest.raises(FedkinError, match=r"config\.toml: files should be a table of checksums"):
        make_config({"method": "local", "files": files}, "config.toml")


def test_methods_from_files_must_be_methods(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from fedkin.methods import FedAvg, Method\nfrom fedkin.methods.registry import register\n"
        "class Half(Method):\n    pass\nclass Mine(FedAvg):\n    pass\n"
    )
    for name, sentence in (("Half", "defines no init"), ("register", "is not a method")):
        with pytest.raises(FedkinError, match=sentence):
            make_config({"method": f"{path}:{name}"})
    config = make_config({"method": f"{path}:Mine"})
    assert config.make_method().name == "mine.Mine"
    path.write_text(
        "from fedkin.methods import FedAvg\nfrom fedkin.methods.registry import register\n"
        "@register('fedprox')\nclass Mine(FedAvg):\n    pass\n"
    )
    with pytest.raises(FedkinError, match="fedkin has a method 'fedprox' already"):
        make_config({"method": f"{path}:Mine"})


def test_losses_and_objectives_from_files(tmp_path) -> None:
    path = tmp_path / "rules.py"
    path.write_text("number = 3\ndef rule(loss, w, beta, s):\n    return loss(beta)\n")
    chosen = {"method": "lsgd", "options": {"objective": f"{path}:rule"}}
    assert make_config(chosen).make_method().objective == f"{path}:rule"
    with pytest.raises(FedkinError, match="is not an objective"):
        make_config({"method": "lsgd", "options": {"objective": f"{path}:number"}})
    with pytest.raises(FedkinError, match="is not a loss"):
        make_config({"method": "lsgd", "model": {"loss": f"{path}:number"}})


def test_runs_over_sites_take_no_files(tmp_path) -> None:
    path = tmp_path / "serve.toml"
    for text in ('method = "m.py:M"\n', 'method = "fedavg"\n[model]\nname = "m.py:Net"\n'):
        path.write_text(text)
        with pytest.raises(FedkinError, match=r"code in a file: .*make it a package"):
            read_serve_config(path)


def test_packages_offer_methods_and_models(monkeypatch, net) -> None:
    points = {
        "fedkin.methods": EntryPoint("theirs", "fedkin.methods.fedavg:FedAvg", "fedkin.methods"),
        "fedkin.models": EntryPoint("bilinear", "torch.nn:Bilinear", "fedkin.models"),
    }
    for module in (registry, user_code):
        monkeypatch.setattr(module, "entry_points", lambda group: [points[group]])
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    assert registry.get_method("theirs").__name__ == "FedAvg"
    sizes = {"in1_features": 2, "in2_features": 2, "out_features": 1}
    assert user_code.make_model("bilinear", (2,), 1, 0, sizes).out_features == 1
    points["fedkin.methods"] = EntryPoint("gone", "no_such_package:Method", "fedkin.methods")
    with pytest.raises(FedkinError, match=r"method 'gone' .*cannot be imported"):
        registry.get_method("gone")
    with pytest.raises(FedkinError, match="did you mean 'gone'"):
        registry.get_method("gon")
