"""What layers with gradients written out have in common, and where the gradients go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedkin.models.layout import Models, Slot

aten = torch.ops.aten


class UnsupportedLayerError(Exception):
    """The module is not a plain chain of layers with gradients written out here."""


@dataclass(frozen=True)
class Into:
    """Where gradients go: into views of `rows` [B, d], or on top of what is there (`add`)."""

    rows: Models
    add: bool = False

    def of(self, slot: Slot, i: int | None = None) -> Tensor:
        """The place of a parameter (of row i alone). Ask after the last look at v."""
        target = slot.view(self.rows)
        return target if i is None else target[i]

    def put(self, gradient: Tensor, slot: Slot, i: int | None = None) -> None:
        target = self.of(slot, i)
        target.add_(gradient) if self.add else target.copy_(gradient)


class Layer:
    """`forward` gives the output and what `backward` needs of it.

    `backward` puts the gradients of the layer's own parameters where `into` says, which may be
    in v itself. It gives the gradient by the layer's input (None for the first layer: nobody
    needs it). `learns` tells whether it has parameters.
    """

    learns = False

    def forward(self, v: Models, x: Tensor) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def backward(self, v: Models, kept: Any, gy: Tensor, into: Into, first: bool) -> Tensor | None:
        raise NotImplementedError
