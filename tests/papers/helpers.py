"""A tiny item on digits."""

from __future__ import annotations

from typing import Any

from fedkin.papers.claims import Claim, above
from fedkin.papers.figures import Bars, Curves
from fedkin.papers.item import Item, Line, Panel
from fedkin.papers.measures import accuracy, last

RUN: dict[str, Any] = {
    "data": {"name": "digits", "num_clients": 4},
    "model": {"name": "linear"},
    "rounds": 4,
    "eval_every": 2,
    "baseline": False,
}
LINES = (
    Line("FedAvg", "fedavg", {"lr": 0.1}, {"accuracy": 90.0}),
    Line("pFedKM K=2", "pfedkm", {"clusters": 2}),
)


def panel(name: str = "digits", **changes: Any) -> Panel:
    return Panel(**{"name": name, "title": f"Digits, {name}", "run": RUN, "lines": LINES,
                    "small": {"rounds": 2}, **changes})  # fmt: skip


def item(*panels: Panel, claims: tuple[Claim, ...] | None = None, **changes: Any) -> Item:
    panels = panels or (panel(),)
    first = above("FedAvg is better.", "FedAvg", ("pFedKM K=2",), "accuracy",
                  [p.name for p in panels], "That is how it is.")  # fmt: skip
    values: dict[str, Any] = {
        "kind": "table",
        "number": "7",
        "title": "accuracy",
        "panels": panels,
        "measures": (accuracy("personal"), last("personal_loss", "loss", "loss")),
        "claims": (first,) if claims is None else claims,
        "pictures": (Curves("personal_accuracy", "accuracy"), Bars("loss")),
        "chosen": "Open in print: everything.",
        "seeds": {"small": 2, "paper": 3},
    }
    return Item(**{**values, **changes})
