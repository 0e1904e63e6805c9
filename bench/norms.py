"""Which `norm` is right by default: batch norms on data whose labels, or inputs, differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

import fedkin
from bench.timing import Row
from fedkin.core.problem import NormName
from fedkin.data import DataConfig, load
from fedkin.data.clients import ClientData, Examples
from fedkin.errors import unknown
from fedkin.methods.registry import get_method
from fedkin.runs.pooled import score_pooled
from fedkin.runs.settings import Settings
from fedkin.runs.training import Trainer

ROUNDS, STEPS, LR, SEEDS = 25, 10, 0.1, 3
METHODS = ("fedavg", "ditto")
NORMS: tuple[NormName, ...] = ("shared", "local", "averaged")
UNSEEN = 0.2  # of the clients are kept out
SOME = {"num_clients": 10, "train_per_client": 200, "test_per_client": 100}
TURNED = {"partition": "iid", "rotation_groups": 4, **SOME, "num_clients": 12}
# a data set's config, and whether every client changes its inputs by a gain and an offset
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "digits labels": ({"name": "digits", "alpha": 0.3, "num_clients": 10}, False),
    "mnist labels": ({"name": "mnist", "alpha": 0.3, **SOME}, False),
    "digits turned": ({"name": "rotated-digits"}, False),
    "cifar10 labels": ({"name": "cifar10", "alpha": 0.3, **SOME}, False),
    "mnist turned": ({"name": "mnist", **TURNED}, False),
    "cifar10 gain": ({"name": "cifar10", "partition": "iid", **SOME}, True),
    "digits gain": ({"name": "digits", "partition": "iid", "num_clients": 10}, True),
    "digits iid": ({"name": "digits", "partition": "iid", "num_clients": 10}, False),
    "mnist both": ({"name": "mnist", "alpha": 0.3, **SOME}, True),
}


def norms(only: str | None = None) -> Iterator[Row]:
    """Mean accuracy in % by how batch norms are kept, over three seeds: of clients' own models; of
    the one model for all, on all clients' data; and of newcomers, after 0 and 10 steps at home.
    +-: the deviation over seeds of the difference to shared."""
    if only is not None and only not in CASES:
        raise unknown("data", only, CASES)
    for case in CASES if only is None else (only,):
        for method in METHODS:
            found = {
                norm: [_accuracies(case, method, norm, seed) for seed in range(SEEDS)]
                for norm in NORMS
            }
            for norm in NORMS:
                row: Row = {"data": case, "method": method, "norm": norm}
                for what in found[norm][0]:
                    own, usual = (
                        np.array([run[what] for run in found[n]]) for n in (norm, NORMS[0])
                    )
                    more = f" ({(own - usual).mean():+.1f} +- {(own - usual).std(ddof=1):.1f})"
                    row[what] = f"{own.mean():.1f}{more if norm != NORMS[0] else ''}"
                yield row


def _accuracies(case: str, method: str, norm: NormName, seed: int) -> dict[str, float]:
    config, gained = CASES[case]
    data = load(DataConfig(**config, unseen=UNSEEN), seed=seed)
    assert data.newcomers is not None
    if gained:
        others = _with_gains(data.newcomers, seed + 77)
        data = replace(_with_gains(data, seed), newcomers=others)
    torch.manual_seed(seed)
    model = _mlp(data) if config["name"].endswith("digits") else _cnn(data)
    problem = fedkin.Problem(model, data, norm=norm)
    make: Any = get_method(method)
    chosen = make(lr=LR, local_steps=STEPS)
    settings = Settings(rounds=ROUNDS, eval_every=ROUNDS, seed=seed, baseline=False)
    trainer = Trainer(problem, chosen, settings)
    personal = trainer.run().accuracy
    model = chosen.global_model(trainer.contenders["method"].state)
    new = trainer.newcomers().groupby("steps")["accuracy"].mean()
    return {
        "personal": 100 * personal,
        "global": 100 * score_pooled(problem, model).accuracy if model is not None else np.nan,
        "new, 0 steps": 100 * float(new["0"]),
        "new, 10 steps": 100 * float(new["10"]),
    }


def _mlp(data: ClientData) -> nn.Module:
    inputs, outputs = int(np.prod(data.input_shape)), data.num_classes or 1
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, outputs),
    )  # fmt: skip


def _cnn(data: ClientData) -> nn.Module:
    (channels, height, width), outputs = data.input_shape, data.num_classes or 1
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * (height // 4) * (width // 4), outputs),
    )  # fmt: skip


def _with_gains(data: ClientData, seed: int) -> ClientData:
    """Every client's inputs times a number of its own (1/2 to 2), plus one (-1 to 1)."""
    g = np.random.default_rng([seed, 1])
    numbers = [(2 ** g.uniform(-1, 1), g.uniform(-1, 1)) for _ in range(len(data.train))]

    def changed(part: Examples) -> Examples:
        rows = zip((part[i] for i in range(len(part))), numbers, strict=True)
        return Examples.of([(gain * x + offset, y) for (x, y), (gain, offset) in rows])

    return replace(data, train=changed(data.train), test=changed(data.test))
