"""Depersonalized Federated Learning: table 1, column by column."""

from __future__ import annotations

from typing import Any

from fedkin.papers.recipe import Line, Recipe

CHOSEN = "Open in print: batches of 20. Accuracy is that of the global model on the official test."
METHODS = ("FedDeper", "FedDeper* (half)", "FedAvg", "FedProx", "SCAFFOLD")

MLP = {"name": "mlp:512,256"}
MNIST_CNN = {"name": "cnn3:32,64,1024,512"}
CIFAR_CNN = {"name": "cnn:64,128,1024,512,256"}

# by column and m, in the order of METHODS
PRINTED = {
    ("mnist-mlp-a", 5): (94.92, 94.67, 89.19, 86.19, 94.52),
    ("mnist-mlp-a", 10): (95.28, 95.23, 89.86, 88.77, 95.32),
    ("mnist-cnn-a", 5): (95.84, 95.00, 90.34, 86.83, 94.20),
    ("mnist-cnn-a", 10): (96.55, 95.11, 93.73, 91.11, 95.64),
    ("mnist-mlp-b", 5): (91.88, 92.08, 87.64, 82.94, 93.05),
    ("mnist-mlp-b", 10): (93.70, 93.42, 87.88, 84.02, 92.02),
    ("mnist-cnn-b", 5): (96.13, 91.03, 89.86, 87.17, 69.93),
    ("mnist-cnn-b", 10): (96.88, 96.58, 91.14, 87.36, 67.11),
    ("cifar10-mlp-b", 5): (48.84, 47.23, 45.22, 44.36, 49.63),
    ("cifar10-mlp-b", 10): (50.66, 51.05, 49.95, 48.53, 52.72),
    ("cifar10-cnn-b", 5): (68.19, 67.19, 56.28, 49.20, 51.58),
    ("cifar10-cnn-b", 10): (71.27, 71.27, 60.84, 54.80, 49.00),
}


def _column(column: str, m: int, model: dict[str, Any]) -> Recipe:
    """Setting (a): 10 clients, rho .03; (b): 100 clients, rho .005; m of them in a round."""
    data = column.partition("-")[0]
    clients, rho = (10, 0.03) if column.endswith("-a") else (100, 0.005)
    rounds = 500 if data == "mnist" else 2000
    work = {"lr": 0.01, "local_steps": 10}
    deper = work | {"rho": rho, "lam": 0.5}
    numbers: tuple[tuple[str, dict[str, Any]], ...] = (
        ("feddeper", deper),
        ("feddeper", deper | {"half": True}),
        ("fedavg", work),
        ("fedprox", work | {"mu": 1.0}),
        ("scaffold", work),
    )
    lines = tuple(
        Line(label, method, options, printed)
        for label, (method, options), printed in zip(
            METHODS, numbers, PRINTED[column, m], strict=True
        )
    )
    run = {
        "data": {"name": data, "num_clients": clients, "partition": "shards"},
        "model": model,
        "fraction": m / clients,
        "rounds": rounds,
        "eval_every": 50,
        "checkpoint_every": rounds // 5,
        "baseline": False,
    }
    return Recipe(f"feddeper table 1, {column}, m={m}", run, lines, "global", CHOSEN)


MODELS = {"mnist-mlp": MLP, "mnist-cnn": MNIST_CNN, "cifar10-mlp": MLP, "cifar10-cnn": CIFAR_CNN}

RECIPES = {
    f"table1-{column}-m{m}": _column(column, m, MODELS[column[:-2]])
    for column, m in PRINTED
}
