"""What users bring from files or packages: methods, models, losses and objectives."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from torch import nn

from fedkin.core.augment import OwnChange
from fedkin.core.losses import LOSSES, Loss, get_loss
from fedkin.errors import FedkinError, unknown
from fedkin.methods.registry import add, from_package
from fedkin.methods.shared.objectives import Objective, add_objective
from fedkin.models import MODELS, build
from fedkin.models.own import make
from fedkin.runs.plugins import absolute, is_file, load, short_name

# the group of entry points by which packages offer models
MODEL_GROUP = "fedkin.models"


def known_method(name: str) -> str:
    """The name under which a method is registered: its own, or the whole reference to its file."""
    if not is_file(name):
        return name
    reference, cls = absolute(name), load(name, "method")
    if isinstance(cls, type) and "name" not in vars(cls):
        cls.name = short_name(reference)  # type: ignore[attr-defined]
    add(reference, cls)
    return reference


def known_objective(name: str) -> str:
    """The same for an objective: a rule f(loss, w, beta, s), as in `methods.shared.objectives`."""
    if not is_file(name):
        return name
    reference, rule = absolute(name), load(name, "objective")
    if isinstance(rule, Objective) or not callable(rule):
        raise FedkinError(f"'{name}' is not an objective: give a function of (loss, w, beta, s)")
    add_objective(reference, rule)
    return reference


def find_loss(name: str | None) -> str | Loss | None:
    """A loss by name, or the function of (outputs, targets) in a file."""
    if not is_file(name):
        if name not in (None, *LOSSES):
            raise unknown("loss", name, LOSSES)
        return name
    assert name is not None
    loss = load(name, "loss")
    if isinstance(loss, type) or not callable(getattr(loss, "value", loss)):
        raise FedkinError(
            f"'{name}' is not a loss: give a function of (outputs, targets) with one value per "
            "example"
        )
    found = get_loss(loss)
    return Loss(short_name(name), found.value, found.classes, found.slope, found.binary)


def find_augment(text: str | None) -> list[str | OwnChange]:
    """Ways to change training examples, separated by commas; functions come from files."""
    found: list[str | OwnChange] = []
    for kind in text.split(",") if text else []:
        change = load(kind.strip(), "augmentation") if is_file(kind.strip()) else kind.strip()
        if not isinstance(change, str) and (isinstance(change, type) or not callable(change)):
            raise FedkinError(
                f"'{kind}' is no augmentation: give a function of (examples, numbers)"
            )
        found.append(change)
    return found


def make_model(
    name: str, input_shape: tuple[int, ...], outputs: int, seed: int, args: Mapping[str, Any]
) -> nn.Module:
    """A model by name, from an installed package or from a file."""
    if is_file(name):
        return make(load(name, "model"), name, input_shape, outputs, seed, args)
    kind = name.partition(":")[0]
    if kind not in MODELS:
        offered = {point.name: point for point in entry_points(group=MODEL_GROUP)}
        if name not in offered:
            raise unknown("model", kind, {*MODELS, *offered})
        maker = from_package(offered[name], "model")
        return make(maker, name, input_shape, outputs, seed, args)
    if args:
        raise FedkinError(
            f"model '{name}' takes no model.args: they are for models from files and packages; "
            "widths are given as in mlp:200,100"
        )
    return build(name, input_shape, outputs, seed)
