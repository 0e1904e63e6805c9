"""A driver on a cluster of two hosts: says what it found as one line of json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch.nn.utils import parameters_to_vector

from bench.ray import join, million
from fedkin.errors import FedkinError
from fedkin.methods import Method
from fedkin.methods.registry import get_method
from fedkin.runs.checks import problem
from fedkin.runs.train import train
from tests.helpers import make_named as make

METHODS = ("fedavg", "scaffold", "pfedme", "perm", "asvrcd", "submodel")


def result(method: Method, engine: str, **options: object) -> torch.Tensor:
    """All clients' models after some rounds, and the shards closed again."""
    common = {"rounds": 4, "eval_every": 2, "fraction": 0.6, "seed": 3, "strategy": "native:3:1x1"}
    run = train(problem("mlp:8", torch.float64), method, engine=engine, **{**common, **options})
    models = [parameters_to_vector(m.parameters()).detach() for m in run.personal.values()]
    if run.trainer.cluster:
        run.trainer.cluster.close()
    longest = max(len(m) for m in models)
    return torch.stack([torch.nn.functional.pad(m, (0, longest - len(m))) for m in models])


def equality(address: str) -> dict[str, float]:
    """The largest difference to the embedded engine, by method."""
    there = {"ray_address": address, "shards": 2, "ray_timeout": 120}
    found = {}
    for name in METHODS:
        gap = result(make(name), "embedded") - result(make(name), "ray", **there)
        found[name] = float(gap.abs().max())
    return found


def long_run(address: str, folder: str, rounds: str, resume: bool = False) -> dict[str, object]:
    """SCAFFOLD for many rounds in a folder, which faults may strike."""
    options = {
        "rounds": int(rounds), "eval_every": 10, "checkpoint_every": 5, "seed": 3,
        "strategy": "native:3:1x1", "folder": Path(folder), "resume": resume,
        "ray_address": address, "shards": 2, "ray_timeout": 300.0,
    }  # fmt: skip
    method = get_method("scaffold")(lr=0.002, local_steps=300)
    run = train(problem("mlp:8", torch.float64), method, engine="ray", **options)
    assert run.trainer.cluster is not None
    run.trainer.cluster.close()
    return {"rounds": run.trainer.round}


def a_million(address: str) -> dict[str, object]:
    """A round of a million clients, with the most memory that each process has held."""
    os.environ["RAY_ADDRESS"] = address
    join()
    return million()


def main() -> None:
    what, *words = sys.argv[1:]
    try:
        found = {"equality": equality, "long": long_run, "million": a_million,
                 "resume": lambda *a: long_run(*a, resume=True)}[what](*words)  # fmt: skip
    except FedkinError as error:
        print(json.dumps({"error": str(error)}))
        raise SystemExit(2) from None
    print(json.dumps(found))


main()
