"""Devices of different sizes: which channels to train, and what clients end with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bench.timing import Row
from fedkin.core.problem import Problem
from fedkin.data import DataConfig, load
from fedkin.methods import (
    LocalWork,
    Submodel,
    SubmodelAlone,
    SubmodelDitto,
    SubmodelLocal,
    SubmodelPerm,
)
from fedkin.models import build
from fedkin.runs.evaluation import score
from fedkin.runs.pooled import score_pooled
from fedkin.runs.run import Run
from fedkin.runs.train import train

RATES = (1.0, 0.5, 0.25, 0.125)
# defaults were chosen on seeds 0 to 3 and from 100 on
SEEDS = range(10, 14)
IMAGES = {"num_clients": 20, "train_per_client": 250, "test_per_client": 100}
# a data set's config, the model, rounds, and lr; the rest is as by default
Setting = tuple[dict[str, Any], str, int, float]
SETTINGS: dict[str, Setting] = {
    "rotated-digits": ({"name": "rotated-digits"}, "mlp:64", 100, 0.1),
    "mnist": ({"name": "mnist", **IMAGES}, "mlp:200,200", 100, 0.1),
    "mnist lr .01": ({"name": "mnist", **IMAGES}, "mlp:200,200", 100, 0.01),
    "mnist 2 classes": (
        {"name": "mnist", "partition": "classes", **IMAGES}, "mlp:200,200", 100, 0.1
    ),
    "cifar10": ({"name": "cifar10", **IMAGES}, "cnn:16,32,64", 100, 0.05),
}  # fmt: skip
LINES: dict[str, LocalWork] = {
    "local": SubmodelAlone(rates=RATES),
    "fedavg": Submodel(rates=RATES),
    "perm": SubmodelPerm(rates=RATES),
    "not tuned": Submodel(rates=RATES, tune_steps=0),
    "no scaler": Submodel(rates=RATES, scaler=False),
    "rolling": Submodel(rates=RATES, kind="rolling"),
    "per layer": Submodel(rates=RATES, kind="rolling", windows="per-layer"),
    "shuffled": Submodel(rates=RATES, kind="shuffled"),
    "random": Submodel(rates=RATES, kind="random"),
    "fedavg-local": SubmodelLocal(rates=RATES),
    "ditto": SubmodelDitto(rates=RATES),
}


def rates(only: str | None = None) -> Iterator[Row]:
    """Accuracy by rate, and how far the worst rate lies above the same size alone; --only one of
    the data sets, or one of its lines as in "cifar10: perm"."""
    for data in SETTINGS:
        for line in LINES:
            if only in (None, data, f"{data}: {line}"):
                yield _row(data, line)


def _row(data: str, line: str) -> Row:
    """Differences are of the same clients, over seeds."""
    values = _by_rate(data, line)
    gain = values - _by_rate(data, "local")
    error = gain.std(0) / len(gain) ** 0.5
    worst = int(gain.mean(0).argmin())
    cells = {f"rate {r:g}": float(v) for r, v in zip(RATES, values.mean(0), strict=True)}
    worst_gain = {"worst gain": float(gain.mean(0)[worst]), "+-": float(error[worst])}
    return {"data": data, "what": line, **cells, **worst_gain}


@cache
def _by_rate(data: str, line: str) -> Tensor:
    """Mean accuracy of each rate's personal models in per cent: [seeds, rates]."""
    found = []
    for seed in SEEDS:
        run = _trained(SETTINGS[data], LINES[line], seed)
        contender = run.trainer.contenders["method"]
        personal = contender.models(run.trainer.round)
        accuracy = score(contender.fed, personal).accuracy
        rates = contender.state.rates
        found.append(torch.stack([accuracy[rates == rate].mean() for rate in RATES]))
    return 100 * torch.stack(found)


def _trained(setting: Setting, method: LocalWork, seed: int) -> Run:
    config, model, rounds, lr = setting
    clients = load(DataConfig(**config), seed=seed)
    problem = Problem(build(model, clients.input_shape, clients.num_classes or 1), clients)
    now = replace(method, lr=lr)
    return train(problem, now, rounds=rounds, eval_every=rounds, seed=seed, baseline=False)


SMALL = ({"name": "digits", "num_clients": 20}, "mlp:64,64", 200, 0.1)


def windows() -> list[Row]:
    """Where all clients have rate 1/8: what is never trained, and what the global model learns."""
    rows = []
    lines = [(k, w) for k in ("rolling", "shuffled") for w in ("shared", "per-layer")]
    for kind, where in [("static", "shared"), *lines, ("random", "shared")]:
        method = Submodel(rates=(1 / 8,), kind=kind, windows=where)  # type: ignore[arg-type]
        never, accuracy, personal = [], [], []
        for seed in SEEDS:
            run = _trained(SMALL, method, seed)
            never.append(100 * run.metrics["untrained"].iloc[-1])
            x = run.trainer.contenders["method"].state.x
            accuracy.append(100 * score_pooled(run.problem, x).accuracy)
            personal.append(100 * run.accuracy)
        means = (sum(values) / len(values) for values in (never, accuracy, personal))
        titles = ("never trained %", "global %", "personal %")
        rows.append({"kind": kind, "windows": where, **dict(zip(titles, means, strict=True))})
    return rows
