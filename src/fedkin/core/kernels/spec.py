"""What a kernel must know of a problem, and what it offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedkin.core.losses import Loss
from fedkin.models.layout import Layout


@dataclass(frozen=True)
class ModelSpec:
    """A module, its layout and the loss of one example."""

    module: nn.Module
    layout: Layout
    loss: Loss


def weights(w: Tensor | None, values: Tensor) -> Tensor:
    """w, or 1/n for each of the n examples in every row of `values` [B, n]."""
    return torch.full_like(values, 1 / values.shape[1]) if w is None else w


class Kernel(Protocol):
    """Gradients, values and outputs of B models on B sets of examples."""

    def outputs(self, v: Tensor, x: Tensor) -> Tensor:
        """Each row's model on each row's examples: [B, n, ...]."""
        ...

    def grad(self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
        """Gradient by v of sum_j w_j loss_j: [B, d]."""
        ...

    def value_and_grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The weighted loss as a column [B, 1], and its gradient [B, d]."""
        ...

    def hvp(self, v: Tensor, u: Tensor, x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
        """Hessian of the weighted loss at v times u: [B, d]."""
        ...
