"""One claim of each neighbouring method's paper, on digits: a matter of minutes.

The papers' data sets are larger, and their networks deeper. What is repeated here is the claim (who
is above whom, in which situation), with the library's defaults.
"""

from __future__ import annotations

from typing import Any

from fedkin.papers.claims import Claim, Why, above, below
from fedkin.papers.figures import Bars
from fedkin.papers.item import Item, Line, Panel
from fedkin.papers.measures import accuracy, last

SEEDS = {"small": 3, "paper": 3}
RUN: dict[str, Any] = {"baseline": False, "rounds": 30, "eval_every": 30, "checkpoint_every": 30}
HOW = (
    "The papers' claims in our words, on scikit-learn's digits and small networks in place of "
    "theirs; all methods with the library's defaults and the same clients (localized FedAvg with "
    "as many steps at the end as FedBABU). Defaults were not tuned on these runs, but three "
    "were changed after a first look at them: FedFomo judges models on data that it does not train "
    "on, FedBABU tunes for longer, and FedAdam's server takes longer steps (chosen on other seeds)."
)

# FedBABU's number of steps before a model is used: what is compared is where they begin
EQUALLY_TUNED = {"fedavg-local": {"tune_steps": 100}}
OURS = "The situations, sizes and networks are ours; each claim is its paper's."
EASY_ALONE = (
    "Two digits are told apart by training alone, and nothing is left to gain. On four other seeds "
    "FedRep is where training alone is after 300 rounds (98.9 %), and 0.2 points above it with "
    "four classes per client after 100."
)
TUNED_ALIKE = (
    "After 100 steps at home clients of two digits are where training alone is, whatever they "
    "began from: here the two are level."
)


def _panel(
    name: str, title: str, data: dict[str, Any], model: dict[str, Any], lines: dict[str, str],
    **run: Any,
) -> Panel:  # fmt: skip
    found = tuple(
        Line(label, method, EQUALLY_TUNED.get(method, {})) for label, method in lines.items()
    )
    return Panel(name, title, RUN | {"data": data, "model": model} | run, found)


FEW = _panel(
    "two-classes", "digits, 20 clients with two classes each",
    {"name": "digits", "num_clients": 20, "partition": "classes", "classes_per_client": 2},
    {"name": "mlp:32"},
    {
        "local": "local", "FedAvg": "fedavg", "localized FedAvg": "fedavg-local",
        "FedPer": "fedper", "FedRep": "fedrep", "LG-FedAvg": "lg-fedavg", "FedBABU": "fedbabu",
        "pFedHN": "pfedhn", "FedALA": "fedala",
    },
)  # fmt: skip


def _above_fedavg(method: str, words: str, *others: str) -> Claim:
    return above(f"{method}: {words}", method, ("FedAvg", *others), "accuracy", [FEW.name])


CLASSES = Item(
    "experiment", "classes", "few classes per client", (FEW,),
    (accuracy("personal"), last("bytes_up", "bytes", "MB sent by clients", ".3g", 1e-6)),
    (
        _above_fedavg("FedPer", "with last layers of their own clients are better off than with "
                      "FedAvg's one model."),
        _above_fedavg("FedRep", "better than one model, and than training alone.", "local")
        .because(Why.SETTING, EASY_ALONE),
        _above_fedavg("LG-FedAvg", "clients with their own representations are better off than "
                      "with FedAvg's one model."),
        below("LG-FedAvg: fewer bytes are sent.", "LG-FedAvg", ("FedAvg",), "bytes", [FEW.name]),
        above("FedBABU: fine-tuned from a base that was trained under a fixed head, clients are "
              "better off than fine-tuned from FedAvg's model.", "FedBABU",
              ("localized FedAvg",), "accuracy", [FEW.name], TUNED_ALIKE).because(Why.SETTING),
        _above_fedavg("pFedHN", "models made by a hypernetwork are better than one model for all."),
        _above_fedavg("FedALA", "what a client takes over is better chosen by itself."),
    ),
    (Bars("accuracy"),), HOW, ours=OURS, seeds=SEEDS,
)  # fmt: skip

GROUPS = _panel(
    "permuted-labels", "digits, four groups of clients that name the classes differently",
    {"name": "digits", "num_clients": 20, "partition": "iid", "label_groups": 4},
    {"name": "mlp:32"},
    {"local": "local", "FedAvg": "fedavg", "FedFomo": "fedfomo", "CFL": "cfl"},
    rounds=60, eval_every=60, checkpoint_every=60,
)  # fmt: skip
TURNED = Panel(
    "turned", "digits turned by client groups, a small residual network with batch norm",
    RUN | {
        "data": {"name": "rotated-digits", "num_clients": 12}, "model": {"name": "resnet18:8"},
        "rounds": 15, "eval_every": 15, "checkpoint_every": 15,
    },
    (
        Line("FedAvg", "fedavg", run={"model": {"norm": "averaged"}}),
        Line("FedBN", "fedbn", run={"model": {"norm": "shared"}}),
    ),
)  # fmt: skip
SHIFTS = Item(
    "experiment", "groups", "clients whose labels, or inputs, differ by group", (GROUPS, TURNED),
    (accuracy("personal"),),
    (
        above("FedFomo: weighing others' models by what they gain is better than training alone "
              "and than one model.", "FedFomo", ("local", "FedAvg"), "accuracy", [GROUPS.name]),
        above("CFL: splitting clients by their gradients' directions is better than one model.",
              "CFL", ("FedAvg",), "accuracy", [GROUPS.name]),
        above("FedBN: where inputs differ, batch norms that stay at home are better than batch "
              "norms averaged with all the rest.", "FedBN", ("FedAvg",), "accuracy",
              [TURNED.name]),
    ),
    (Bars("accuracy"),), HOW, ours=OURS, seeds=SEEDS,
)  # fmt: skip

SKEWED = _panel(
    "skewed", "digits, 20 clients, Dirichlet .1, four of them in a round",
    {"name": "digits", "num_clients": 20, "alpha": 0.1}, {"name": "mlp:32"},
    {"FedAvg": "fedavg", "FedAvgM": "fedavgm", "FedAdam": "fedadam", "FedDyn": "feddyn"},
    fraction=0.2,
)  # fmt: skip


def _better_server(method: str, words: str) -> Claim:
    return above(f"{method}: {words}", method, ("FedAvg",), "accuracy", [SKEWED.name])


SERVERS = Item(
    "experiment", "servers", "one model from clients with skewed labels", (SKEWED,),
    (accuracy("global"),),
    (
        _better_server("FedAvgM", "momentum at the server helps where labels are skewed."),
        _better_server("FedAdam", "so do adaptive steps of the server."),
        _better_server("FedDyn", "so does correcting each client's loss."),
    ),
    (Bars("accuracy"),), HOW, ours=OURS, seeds=SEEDS,
)  # fmt: skip

ITEMS = (CLASSES, SHIFTS, SERVERS)
