"""Devices of different sizes: which channels to train, and what clients end with."""

from __future__ import annotations

from typing import Any

import torch

from bench.timing import Row
from fedkin.core.problem import Problem
from fedkin.data import DataConfig, load
from fedkin.methods import Submodel, SubmodelAlone, SubmodelDitto, SubmodelLocal
from fedkin.models import build
from fedkin.runs.training import train

RATES = (1.0, 0.5, 0.25, 0.125)
SEEDS = range(2)
MIXED = {"num_clients": 20, "partition": "dirichlet"}
FEW = {"train_per_client": 250, "test_per_client": 100}
# a data set's config, the model, and how long it is trained; the rest is as by default
SETTINGS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "rotated-digits": ({}, "mlp:64", {"rounds": 100}),
    "mnist": (MIXED | FEW, "mlp:200,200", {"rounds": 100}),
    "mnist, 2 classes": (
        MIXED | FEW | {"name": "mnist", "partition": "classes"}, "mlp:200,200", {"rounds": 100},
    ),
    "cifar10": (MIXED | FEW, "cnn:16,32,64", {"rounds": 60, "lr": 0.05}),
}  # fmt: skip
METHODS = {"fedavg": Submodel, "fedavg-local": SubmodelLocal, "ditto": SubmodelDitto}
KINDS = ("static", "rolling", "shuffled", "random")


def rates() -> list[Row]:
    """Accuracy at rates 1, 1/2, 1/4, 1/8, and what it is above the same size alone."""
    rows = []
    for data in SETTINGS:
        alone = _by_rate(data, SubmodelAlone, {})
        rows.append({"data": data, "method": "local", "kind": "", **_cells(alone), "worst": 0.0})
        for method, cls in METHODS.items():
            for kind in KINDS:
                found = _by_rate(data, cls, {"kind": kind})
                rows.append({
                    "data": data, "method": method, "kind": kind, **_cells(found),
                    "worst": float((found - alone).min()),
                })  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def _by_rate(data: str, cls: Any, options: dict[str, Any]) -> torch.Tensor:
    """The mean accuracy of each rate's personal models, in per cent, over seeds."""
    config, model, work = SETTINGS[data]
    name = config.get("name", data)
    work = dict(work)
    rounds = work.pop("rounds")
    found = []
    for seed in SEEDS:
        clients = load(DataConfig(**{"name": name, **config}), seed=seed)
        problem = Problem(build(model, clients.input_shape, clients.num_classes or 1), clients)
        method = cls(rates=RATES, **work, **options)
        run = train(problem, method, rounds=rounds, eval_every=rounds, seed=seed, baseline=False)
        contender = run.trainer.contenders["method"]
        dealt = contender.method.results(contender.state)["rates"][:, 0]
        accuracy = torch.tensor(run.clients["personal_accuracy"].tolist())
        found.append(torch.stack([accuracy[dealt == rate].mean() for rate in RATES]))
    return 100 * torch.stack(found).mean(0)


def _cells(values: torch.Tensor) -> dict[str, float]:
    return {f"rate {rate:g}": float(v) for rate, v in zip(RATES, values, strict=True)}
