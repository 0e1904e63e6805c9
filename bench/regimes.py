"""PERM, with nothing set, against training alone and one model for all, on many kinds of data."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import fedkin
from bench.timing import Row
from fedkin.data import DataConfig, load
from fedkin.errors import unknown
from fedkin.methods.registry import get_method
from fedkin.models import build

ROUNDS = 100
IMAGES = {"num_clients": 20, "train_per_client": 250, "test_per_client": 100}
HEART = {
    "name": "csv", "path": os.environ.get("FEDKIN_DATA", ".") + "/heart-disease/heart-disease.csv",
    "client_column": "hospital",
    "target_column": "disease",
}  # fmt: skip
# a data set's config, and the model
REGIMES: dict[str, tuple[dict[str, Any], str]] = {
    "rotated digits": ({"name": "rotated-digits"}, "mlp:64"),
    "digits iid": ({"name": "digits", "partition": "iid"}, "mlp:64"),
    "digits Dirichlet 1": ({"name": "digits", "alpha": 1.0}, "mlp:64"),
    "digits Dirichlet .1": ({"name": "digits", "alpha": 0.1}, "mlp:64"),
    "mnist 2 classes": ({"name": "mnist", "partition": "classes", **IMAGES}, "mlp:64"),
    "synthetic": ({"name": "synthetic"}, "logistic"),
    "perm-synthetic": ({"name": "perm-synthetic"}, "logistic"),
    "heart disease": (HEART, "logistic"),
    "cifar10 Dirichlet 1": ({"name": "cifar10", "alpha": 1.0, **IMAGES}, "cnn:8,16,64"),
    "cifar10 Dirichlet .1": ({"name": "cifar10", "alpha": 0.1, **IMAGES}, "cnn:8,16,64"),
}
RIVALS = ("local", "fedavg", "fedavg-local")
METHODS = (*RIVALS, "perm-printed", "perm")


def regimes(
    only: str | None = None, seeds: int = 10, cells: Path = Path("regimes.jsonl")
) -> Iterator[Row]:
    """PERM by default against local, fedavg and fedavg-local: accuracy in % over seeds, with 95 %
    intervals. What is computed is kept in a file (--cells), so that it can be stopped and go on."""
    known, code = _read(cells), {method: _fingerprint(method) for method in METHODS}
    if only is not None and only not in REGIMES:
        raise unknown("data", only, REGIMES)
    for name in REGIMES if only is None else (only,):
        found: dict[str, list[float]] = {method: [] for method in METHODS}
        work: dict[str, float] = {}
        for seed in range(seeds):
            for method in METHODS:
                key = f"{name} {method} {seed} {code[method]}"
                if key not in known:
                    known[key] = _cell(name, method, seed)
                    _append(cells, key, known[key])
                found[method].append(known[key]["accuracy"])
                work[method] = known[key]["gradients"]
        best = max(RIVALS, key=lambda method: float(np.mean(found[method])))
        gain = np.array(found["perm"]) - np.array(found[best])
        means = {method: f"{np.mean(values):.1f}" for method, values in found.items()}
        yield {
            "data": name, **means, "best rival": best,
            "perm - best": f"{gain.mean():+.1f} +- {_half(gain):.1f}",
            "gradients": f"{work['perm'] / work['fedavg']:.2f}",
        }  # fmt: skip


def _cell(name: str, method: str, seed: int) -> dict[str, float]:
    config, model = REGIMES[name]
    data = load(DataConfig(**config), seed=seed)
    problem = fedkin.Problem(build(model, data.input_shape, data.num_classes or 1, seed=seed), data)
    chosen = get_method(method)()
    settings: dict[str, Any] = {"rounds": ROUNDS, "eval_every": ROUNDS, "seed": seed}
    run = fedkin.train(problem, chosen, progress=False, baseline=False, **settings)
    gradients = run.trainer.contenders["method"].fed.accounts.total("gradients")
    return {"accuracy": 100 * run.accuracy, "gradients": float(gradients)}


def _half(values: np.ndarray[Any, Any]) -> float:
    """Half of the 95 % interval of a mean."""
    if len(values) < 2:
        return float("nan")
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def _fingerprint(method: str) -> str:
    """Of the code that computes: what other code has computed counts no more."""
    root, digest = Path(fedkin.__file__).parent, hashlib.sha256()
    files = {path for room in ("core", "data", "models") for path in (root / room).rglob("*.py")}
    for path in sorted(files | _imported(get_method(method).__module__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _imported(module: str) -> set[Path]:
    """The files of a module and of all that it imports from among the methods."""
    root, found, due = Path(fedkin.__file__).parent.parent, set[Path](), [module]
    while due:
        path = root / (due.pop().replace(".", "/") + ".py")
        if path in found or not path.is_file() or "methods" not in path.parts:
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                due += [node.module, *(f"{node.module}.{part.name}" for part in node.names)]
    return found


def _read(path: Path) -> dict[str, dict[str, float]]:
    if not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return {line["cell"]: line for line in lines}


def _append(path: Path, key: str, values: dict[str, float]) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"cell": key, **values}) + "\n")
