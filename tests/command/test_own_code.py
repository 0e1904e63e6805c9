"""A run with a method, a model and a loss from files, from the command line."""

import re
from pathlib import Path

import pandas as pd
import torch

from tests.run_command import Fedkin

METHOD = '''
from dataclasses import dataclass
from fedkin.methods.fedavg import FedAvg, local_sgd

@dataclass
class Damped(FedAvg):
    """FedAvg whose server goes only part of the way."""

    damping: float = 0.5

    def round(self, fed, s):
        mean = fed.mean(steps, at=fed.sample(), shared={"x": s.x}, lr=self.lr, **self.work)
        s.x = s.x + self.damping * mean["dx"]

def steps(client, x, lr, **work):
    return local_sgd(client, x, lr, **work)
'''
PARTS = """
import torch.nn.functional as F
from torch import nn

def net(input_shape, outputs, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, outputs))

def smooth(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)
"""


def test_a_run_from_files_to_predictions(fedkin: Fedkin) -> None:
    Path("my.py").write_text(METHOD)
    Path("parts.py").write_text(PARTS)
    words = ("--data", "digits", "--num-clients", 3, "--rounds", 4, "--checkpoint-every", 2)
    own = ("--model", "parts.py:net", "--model.args", '{"width": 6}', "--loss", "parts.py:smooth")
    begun = fedkin("run", "my.py:Damped", "--damping", 0.8, *own, *words, "--out", "run")
    assert begun.code == 0, begun.err
    assert "my.Damped" in begun.out
    config = Path("run/config.toml").read_text()
    assert re.search(r'^"/.*parts.py" = "[0-9a-f]{64}"$', config, re.MULTILINE)
    assert "damping = 0.8" in config
    assert fedkin("resume", "run").code == 0
    assert "my.Damped" in fedkin("report", "run").out
    assert fedkin("export", "run", "--client", 0, "--to", "net.pt2").code == 0
    assert torch.export.load("net.pt2").module()(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    pd.DataFrame(torch.zeros(2, 64).numpy()).to_csv("new.csv", header=False, index=False)
    assert len(fedkin("predict", "run", "new.csv", "--client", 0).out.splitlines()) == 3
    again = fedkin("run", "run/config.toml", "--out", "again")
    assert again.code == 0, again.err
    first, second = (pd.read_csv(f"{name}/metrics.csv") for name in ("run", "again"))
    pd.testing.assert_frame_equal(first, second)

    Path("parts.py").write_text(PARTS + "\n# another day\n")
    for command in (
        ("resume", "run"),
        ("export", "run", "--client", 0, "--to", "other.pt2"),
        ("predict", "run", "new.csv", "--client", 0),
        ("run", "run/config.toml"),
    ):
        said = fedkin(*command)
        assert said.code == 2
        assert "parts.py has changed since" in said.err
        assert len(said.err.splitlines()) == 1
    assert fedkin("report", "run").code == 0  # it needs no code


def test_files_of_other_kinds_are_one_sentence(fedkin: Fedkin) -> None:
    Path("parts.py").write_text(PARTS)
    for words, sentence in (
        (("run", "parts.py:net"), "is not a method"),
        (("run", "none.py:net"), "there is no file"),
        (("run", "fedavg", "--model", "parts.py:Net"), "did you mean 'net'?"),
        (("run", "fedavg", "--model", "parts.py:net"), "missing a required argument: 'width'"),
        (("run", "fedavg", "--model", "mlp", "--model.args", '{"a": 1}'), "takes no model.args"),
        (("compare", "parts.py:smooth", "fedavg"), "is not a method"),
        (("config", "parts.py:smooth"), "is not a method"),
    ):
        said = fedkin(*words)
        assert (said.code, len(said.err.splitlines())) == (2, 1), said
        assert sentence in said.err


def test_check_tells_what_a_method_breaks(fedkin: Fedkin) -> None:
    Path("my.py").write_text(METHOD)
    said = fedkin("check", "my.py:Damped")
    assert said.code == 0, said.out + said.err
    assert "my.Damped keeps all its promises" in said.out
    noise = METHOD.replace("return local_sgd(client, x, lr, **work)", "return {'dx': 0 * x}")
    Path("my.py").write_text(noise)
    said = fedkin("check", "my.py:Damped")
    assert said.code == 1
    assert "FAILS it learns easy classes\n      accuracy" in said.out
    assert "ok    a run that was stopped continues exactly" in said.out
    assert "breaks" in said.out
    assert fedkin("check", "none.py:Damped").code == 2
