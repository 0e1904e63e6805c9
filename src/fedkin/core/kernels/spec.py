"""What a kernel must know of a problem."""

from __future__ import annotations

from dataclasses import dataclass

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
