"""Learning rates that change over the rounds of a run."""

from __future__ import annotations

import copy
from dataclasses import fields
from math import cos, pi

from fedkin.errors import FedkinError
from fedkin.methods import Method
from fedkin.runs.settings import Settings


def rate(settings: Settings, number: int) -> float:
    """What `lr` is multiplied by in round `number`, the first being 1.

    The first W = `lr_warm_up` rounds have 1/(W+1), ..., W/(W+1). With t rounds done since and T
    to be done in all, cosine: (1 + cos(pi*t/T))/2; step: lr_factor^(t // lr_every).
    """
    warm = settings.lr_warm_up
    if number <= warm:
        return number / (warm + 1)
    t, whole = number - warm - 1, max(1, settings.rounds - warm)
    if settings.lr_schedule == "cosine":
        return (1 + cos(pi * min(t, whole) / whole)) / 2
    if settings.lr_schedule == "step":
        return float(settings.lr_factor ** (t // settings.lr_every))
    return 1.0


def changes(settings: Settings) -> bool:
    """Whether learning rates differ between rounds."""
    return settings.lr_schedule != "constant" or settings.lr_warm_up > 0


def check_schedule(method: Method, settings: Settings) -> None:
    """Refuse a schedule for a method that has nothing to schedule."""
    if changes(settings) and "lr" not in {f.name for f in fields(method)}:
        raise FedkinError(
            f"method '{method.name}' has no lr: its step sizes follow from its theory, so leave "
            "lr_schedule and lr_warm_up out"
        )


def scheduled(method: Method, settings: Settings, number: int) -> Method:
    """The method with the learning rate of this round."""
    if not changes(settings):
        return method
    now = copy.copy(method)
    now.lr = rate(settings, number) * now.lr  # type: ignore[attr-defined]
    return now
