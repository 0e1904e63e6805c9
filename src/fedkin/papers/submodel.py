"""Convergence and Stability of Distributed Sub-model Training: figures 1-4 and all tables.

Items that end in "-cpu" are small enough for two cores: a ResNet of a quarter of the width,
fewer rounds. `python -m fedkin.papers.gap` adds train-test gaps, bytes and seconds to an item,
`python -m fedkin.papers.stability` is the convex experiment on stability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkin.papers.recipe import Line, Recipe

CHOSEN = (
    "Open in print: {rounds} rounds of {work}, lr {lr}, batches of {batch}; entries are averaged "
    "over the clients that hold them. Accuracy is that of the global model at all clients, its "
    "batch norms settled to each client's training data."
)
MIXED = (1.0, 0.5, 0.25, 0.125, 0.0625)
EXTRAS = {"scaler": True, "own_classes": True}

# classes per client by heterogeneity: CIFAR-10, CIFAR-100
CLASSES = {"high": (2, 20), "low": (5, 50)}

PAPER = {"model": {"name": "resnet18", "batch_size": 10}, "rounds": 1000, "eval_every": 50}
SMALL = {"model": {"name": "resnet18:16", "batch_size": 10}, "rounds": 200, "eval_every": 20}
SMALL["strategy"] = "threads"


def _run(data: str, level: str, size: dict[str, Any]) -> dict[str, Any]:
    """100 clients with L classes each, a tenth of them in every round."""
    classes = CLASSES[level][data == "cifar100"]
    dealt = {"num_clients": 100, "partition": "classes", "classes_per_client": classes}
    rest = {"fraction": 0.1, "baseline": False, "checkpoint_every": size["eval_every"]}
    return {"data": {"name": data, **dealt}, **size, **rest}


def _recipe(
    title: str, run: dict[str, Any], kinds: Mapping[str, tuple[str, tuple[float, ...]]],
    printed: dict[str, float] | None = None,
) -> Recipe:  # fmt: skip
    """One line per label: which channels, which rates."""
    small = run["model"]["name"] != "resnet18"
    work = {"local_steps": 10} if small else {"local_epochs": 1}
    lr = 0.05
    lines = tuple(
        Line(label, "submodel", {**EXTRAS, **work, "lr": lr, "kind": kind, "rates": rates},
             (printed or {}).get(label))
        for label, (kind, rates) in kinds.items()
    )  # fmt: skip
    named = "10 local steps" if small else "one local epoch"
    chosen = CHOSEN.format(rounds=run["rounds"], work=named, lr=lr, batch=10)
    return Recipe(title, run, lines, "global", chosen)


# the paper's own rolling has its windows in shuffled order
FIGURES = {
    "full model": ("static", (1.0,)),
    "random, mixed": ("random", MIXED),
    "rolling, mixed": ("shuffled", MIXED),
    "random, smallest": ("random", (0.0625,)),
    "rolling, smallest": ("shuffled", (0.0625,)),
}
TABLE4 = {
    "static, 1/4 and 1/8": ("static", (0.25, 0.125)),
    "rolling, 1/4 and 1/8": ("shuffled", (0.25, 0.125)),
}
PRINTED4 = {"static, 1/4 and 1/8": 34.37, "rolling, 1/4 and 1/8": 35.30}

# train-test gaps of the global model in tables 1 and 2: loss, accuracy in points
PRINTED_GAPS = {
    ("high", "random, mixed"): (0.0126, 0.384),
    ("high", "full model"): (0.0190, 1.488),
    ("low", "random, mixed"): (0.0154, 0.094),
    ("low", "full model"): (0.0330, 0.840),
}
# tables 5 to 8: the share of the model that is communicated, in the paper the mean rate
PRINTED_RATES = {
    "full model": 1.0,
    "random, mixed": 0.3898,
    "rolling, mixed": 0.3884,
    "random, smallest": 0.0625,
    "rolling, smallest": 0.0625,
}

RECIPES = {
    f"figures-{data}-{level}{suffix}": _recipe(
        f"submodel figures 1-4, {data}, {level} heterogeneity", _run(data, level, size), FIGURES
    )
    for suffix, size in (("", PAPER), ("-cpu", SMALL))
    for data in ("cifar10", "cifar100")
    for level in CLASSES
    if data == "cifar10" or not suffix
} | {
    "table4": _recipe(
        "submodel table 4, CIFAR-100, high heterogeneity",
        _run("cifar100", "high", PAPER), TABLE4, PRINTED4,
    ),
    "table4-cpu": _recipe(
        "submodel table 4 on CIFAR-10, high heterogeneity", _run("cifar10", "high", SMALL), TABLE4
    ),
}  # fmt: skip
