"""Batch norm at test time: by the statistics of training data, not by the test batch's own."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedkin.core.kernels.spec import ModelSpec

BatchNorm = nn.modules.batchnorm._BatchNorm

# training examples that the statistics are taken from, at most
EXAMPLES = 100


def has_batch_norm(module: nn.Module) -> bool:
    """Whether an example's output depends on the other examples of its batch."""
    return any(isinstance(part, BatchNorm) for part in module.modules())


def spread(count: int, at_most: int = EXAMPLES) -> Tensor:
    """Which of `count` examples to take: all, or some spread evenly over them."""
    places = torch.linspace(0, count - 1, min(count, at_most), dtype=torch.float64)
    return places.round().long()


def settled(spec: ModelSpec, vector: Tensor, examples: Tensor) -> nn.Module:
    """A module with these parameters, its batch norms settled to the statistics of examples."""
    module = spec.layout.fill(copy.deepcopy(spec.module), vector)
    for part in module.modules():
        if isinstance(part, BatchNorm):
            part.track_running_stats, part.momentum = True, 1.0
            part.running_mean = vector.new_zeros(part.num_features)
            part.running_var = vector.new_ones(part.num_features)
    module.train()
    module(examples)
    return module.eval()
