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
    """Where gradients go: into views of `rows` [B, d], or on top of what is there (`add`), which
    is before that drawn towards other models by a share of the way (`pull`), and from which a
    multiple (`times`) of others is taken away (`minus`)."""

    rows: Models
    add: bool = False
    towards: Tensor | None = None
    pull: Any = 0.0
    minus: Tensor | None = None
    times: Any = 1.0

    def of(self, slot: Slot, i: int | None = None) -> Tensor:
        """The place of a parameter (of row i alone). Ask once, and after the last look at v."""
        chosen = slice(None) if i is None else slice(i, i + 1)
        target = slot.view(self.rows)
        target = target if i is None else target[chosen]
        if self.towards is not None:
            target.lerp_(
                self._own(slot, self.towards, chosen), self._number(self.pull, chosen, target)
            )
        if self.minus is not None:
            minus, times = (
                self._own(slot, self.minus, chosen),
                self._number(self.times, chosen, target),
            )
            if isinstance(times, Tensor):
                target.addcmul_(times, minus, value=-1)
            else:
                target.sub_(minus, alpha=times)
        return target if i is None else target[0]

    def _own(self, slot: Slot, models: Tensor, chosen: slice) -> Tensor:
        return slot.view(models if len(models) == 1 else models[chosen])

    def _number(self, value: Any, chosen: slice, target: Tensor) -> Any:
        """A number, or a column for these rows with the target's dimensions."""
        if not isinstance(value, Tensor):
            return value
        column = value.expand(len(self.rows), 1)[chosen]
        return column.view(len(target), *[1] * (target.dim() - 1))

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
