"""Scores of all clients together, where no single one's are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests, parts
from fedkin.core.metrics import METRICS, get_metric
from fedkin.core.steps import find_step, offer_steps, step_name
from fedkin.errors import FedkinError

offer_steps(__name__)


def addable(client: Client, how: str, metrics: str, **arguments: Any) -> dict[str, Tensor]:
    """What the step of evaluation `how` says of a client, as numbers that can be added up: each
    value, whether it is known, and the sums behind it."""
    found = find_step(how)(client, metrics=metrics, **arguments)
    has = (found["examples"] > 0).double()
    rows = {"loss": has * found["loss"] / found["examples"].clamp_min(1), "loss known": has}
    for name in metrics.splitlines():
        if f"sums {name}" not in found:
            raise FedkinError("there are no examples here to judge models by")
        sums = found[f"sums {name}"].double()
        value = get_metric(name).value(sums)[:, None]
        rows[name] = value.nan_to_num(0.0)
        rows[f"{name} known"] = (~value.isnan()).double()
        rows[f"{name} sums"] = sums
    return {name: value.double() for name, value in rows.items()}


def means_of(fed: Federation, asked: Requests, metrics: Sequence[str]) -> dict[str, float]:
    """Means over clients by name, and the value of all examples as one under `... pooled`."""
    total: dict[str, Tensor] = {}
    for request in parts(asked):
        hyper = {**request.hyper, "how": step_name(request.step), "metrics": "\n".join(metrics)}
        mean = fed.look_mean(replace(request, step=addable, hyper=hyper))
        for name, value in mean.items():
            part = value * mean.weight
            total[name] = total[name] + part if name in total else part
    found: dict[str, float] = {}
    for name in (*metrics, "loss"):
        count = float(total.get(f"{name} known", torch.zeros(1)))
        # the count is a sum of ones and zeros, rounded to a fixed point
        found[name] = float(total[name]) / round(count) if round(count) else torch.nan
    for name in metrics:
        sums = total.get(f"{name} sums")
        found[f"{name} pooled"] = torch.nan if sums is None else float(METRICS[name].value(sums))
    return found
