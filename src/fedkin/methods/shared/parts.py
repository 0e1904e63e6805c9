"""Parts of a model: which of its numbers are shared and which are a client's own.

Parts go by the beginnings of parameter names (`0.,2.weight`) or by ranges of input features
(`0:10`), separated by commas; with a `!` in front, all but those.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from fedkin.core.client import Client
from fedkin.errors import FedkinError, unknown
from fedkin.methods.shared.formulas import Place
from fedkin.models.layout import Layout

# layers that normalise; all batch and instance norms have one base
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@lru_cache(maxsize=256)
def place(layout: Layout, parts: str) -> Place:
    """The places of the named parts in a model's vector; all of it for an empty text."""
    if parts.startswith("!"):
        named = place(layout, parts[1:])
        if len(named.index) == layout.size:
            raise FedkinError(f"'{parts[1:]}' is the whole model: nothing of it would be left")
        return named.rest()
    chosen = torch.zeros(layout.size, dtype=torch.bool)
    for part in parts.split(",") if parts else [""]:
        chosen |= _features(layout, part) if ":" in part else _named(layout, part.strip())
    return Place(chosen.nonzero()[:, 0], layout.size)


def _named(layout: Layout, beginning: str) -> Tensor:
    chosen = torch.zeros(layout.size, dtype=torch.bool)
    for slot in layout.slots:
        if slot.name.startswith(beginning):
            chosen[slot.start : slot.start + slot.size] = True
    if not chosen.any():
        raise unknown("part of the model", beginning, [slot.name for slot in layout.slots])
    return chosen


def _features(layout: Layout, part: str) -> Tensor:
    """The first layer's weights of input features first:last."""
    chosen = torch.zeros(1, layout.size, dtype=torch.bool)
    weight = next((slot for slot in layout.slots if len(slot.shape) == 2), None)
    first, _, last = part.partition(":")
    if weight is None or not (first.strip().isdigit() and last.strip().isdigit()):
        raise FedkinError(f"'{part}' names no features of a linear layer: write 0:10")
    weight.view(chosen)[..., int(first) : int(last)] = True
    if not chosen.any():
        raise FedkinError(f"'{part}' names no features: the model has {weight.shape[1]}")
    return chosen[0]


def body(layout: Layout, what: str, instead: str) -> str:
    """All parameters but the last layer's, as parts; `what` asks, and says what to set instead."""
    owner = _layer(layout.slots[-1].name)
    names = [slot.name for slot in layout.slots if _layer(slot.name) != owner]
    if not names:
        raise FedkinError(
            f"{what}: the model has a single layer that is trained, so say which of it is shared "
            f"or own, as in {instead} for the first ten features"
        )
    return ",".join(names)


def _layer(name: str) -> str:
    """The layer that a parameter belongs to, also where torch computes it from others."""
    layer, parametrised, _ = name.partition("parametrizations.")
    return layer.rstrip(".") if parametrised else name.rpartition(".")[0]


def last(layout: Layout, what: str, instead: str) -> str:
    """The last layer's parameters, as parts."""
    first = body(layout, what, instead).split(",")
    return ",".join(slot.name for slot in layout.slots if slot.name not in first)


def norms(module: nn.Module, layout: Layout, what: str) -> str:
    """The parameters of normalisation layers."""
    layers = [name for name, part in module.named_modules() if isinstance(part, NORMS)]
    trained = [n for n, value in module.named_parameters() if value.requires_grad]
    names = [name for name in trained if name.rpartition(".")[0] in layers]
    known = {slot.name for slot in layout.slots}
    if not known.issuperset(names):
        raise FedkinError(
            f"{what} keeps norms at home, and norm = 'local' does so for every method: use it with "
            "fedavg, or choose norm = 'shared' here"
        )
    if not names:
        raise FedkinError(
            f"{what} is for models with normalisation layers (batch, layer, group norm) whose "
            "weights are trained, and this one has none: use fedavg, or add such layers"
        )
    return ",".join(names)


class Halves:
    """A client's model in two halves: the shared parts, and the others, which it keeps."""

    def __init__(self, client: Client, parts: str) -> None:
        self.client, self.shared = client, place(client.problem.layout, parts)
        self.own = self.shared.rest()
        self.is_shared = torch.zeros(1, self.shared.size, dtype=torch.bool)
        self.is_shared[0, self.shared.index] = True
        self.is_shared = self.is_shared.to(client.problem.device)

    def model(self, x: Tensor, own: Tensor | None = None) -> Tensor:
        """The whole model: x, and the half that the client keeps (at first the initial one)."""
        if own is None:
            own = self.client.recall("own", self.own.pick(self.client.initial))
        model: Tensor = self.shared(x) + self.own(own)
        return model

    def keep(self, y: Tensor) -> None:
        """Keep the client's own half of a model."""
        self.client.keep(own=self.own.pick(y))
