"""Models by name: ordinary modules built for the shape of the data."""

from __future__ import annotations

from inspect import signature
from math import prod

import torch
from torch import nn

from fedkin.errors import FedkinError, unknown
from fedkin.models import basic, resnet
from fedkin.models.basic import Shape
from fedkin.models.branches import Branches

__all__ = ["MODELS", "Branches", "build"]

MODELS = basic.MODELS | resnet.MODELS
WIDEST = 10**9


def build(name: str, input_shape: Shape, outputs: int, seed: int = 0) -> nn.Module:
    """A model by name, initialised from the seed alone: `mlp`, or with widths as in `mlp:200,100`.

    Linear models start at zero.
    """
    kind, _, widths = name.partition(":")
    if kind not in MODELS:
        raise unknown("model", kind, MODELS)
    if outputs < 1 or prod(input_shape) < 1:
        raise FedkinError(f"no model can map inputs of shape {input_shape} to {outputs} outputs")
    try:
        numbers = [int(width) for width in widths.split(",")] if widths else []
    except ValueError:
        numbers = [0]
    if any(not 0 < number <= WIDEST for number in numbers):
        raise FedkinError(f"model '{name}': widths are whole numbers above zero, as in mlp:200,100")
    try:
        signature(MODELS[kind]).bind(input_shape, outputs, *numbers)
    except TypeError:
        raise FedkinError(f"model '{name}': {kind} does not take that many widths") from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[kind](tuple(input_shape), outputs, *numbers)
