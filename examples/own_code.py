"""
Your own code from a file
=========================

A method, a model and a loss of your own need no package: put them into a file and name them,
``file.py:name``. Here the file is written into a temporary folder, and two commands use it.
"""

import tempfile
from pathlib import Path

import fedkin
from fedkin.command.cli import app

CODE = '''
from dataclasses import dataclass
from math import prod

import torch.nn.functional as F
from torch import nn

from fedkin.methods.fedavg import FedAvg, local_sgd


@dataclass
class Damped(FedAvg):
    """FedAvg whose server goes only part of the way."""

    damping: float = 1.0

    def round(self, fed, s):
        mean = fed.mean(local_sgd, at=fed.sample(), shared={"x": s.x}, lr=self.lr, **self.work)
        s.x = s.x + self.damping * mean["dx"]


def net(input_shape, outputs, width):
    first, last = nn.Linear(prod(input_shape), width), nn.Linear(width, outputs)
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), last)


def smooth(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)
'''

with tempfile.TemporaryDirectory() as place:
    mine, run = Path(place, "mine.py"), str(Path(place, "run"))
    mine.write_text(CODE)
    # fedkin run mine.py:Damped --damping 0.8 --model mine.py:net --model.args '{"width": 32}' ...
    parts = ["--model", f"{mine}:net", "--model.args", '{"width": 32}', "--loss", f"{mine}:smooth"]
    words = ["--data", "digits", "--num-clients", "5", "--rounds", "20", "--lr", "0.1"]
    command = ["run", f"{mine}:Damped", "--damping", "0.8", *parts, *words, "--out", run]
    app(command, standalone_mode=False)

    # the run folder knows the file by its checksum: with another one it does not go on
    mine.write_text(CODE + "\n# another day\n")
    try:
        app(["resume", run], standalone_mode=False)
    except fedkin.FedkinError as error:
        print(f"refused: {error}".replace(place, "..."))
