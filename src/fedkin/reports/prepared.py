"""A model together with the preparation of its inputs, as one module for other programs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.core.losses import LOSSES
from fedkin.data.columns import CategoryColumn, Column, DateColumn, NumberColumn
from fedkin.runs.inputs import Inputs


class Prepared(nn.Module):
    """Raw samples in, answers out: (class numbers, probabilities), or numbers in their own units.

    Of a table each sample is a row of numbers in the order of the columns: a number as it is,
    a category as its place among the column's values (-1: another one), a date as seconds since
    1970, and NaN for what is missing. Other samples are raw as they were before training.
    """

    def __init__(self, module: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.module, self.inputs = module, inputs
        self.loss = LOSSES.get(inputs.loss, LOSSES["cross-entropy"])
        made_ready = inputs.preparation
        self.scale = None
        if made_ready.mean is not None and made_ready.deviation is not None:
            self.scale = [torch.from_numpy(v) for v in (made_ready.mean, made_ready.deviation)]

    def forward(self, samples: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        outputs = self.module(self.ready(samples).to(self.inputs.input_type))
        if self.inputs.num_classes is None:
            return own_units(outputs, self.inputs)
        return self.loss.predict(outputs), probabilities(outputs, self.inputs)

    def ready(self, samples: Tensor) -> Tensor:
        made_ready = self.inputs.preparation
        if not self.inputs.input_type.is_floating_point:
            return samples
        if made_ready.columns is not None:
            values = torch.cat(
                [_block(column, samples[:, i]) for i, column in enumerate(made_ready.columns)], 1
            )
        else:
            values = samples / 255 if made_ready.pixels else samples
        values = values.float()
        if self.scale is not None:
            values = (values - self.scale[0]) / self.scale[1]
        if made_ready.unit_norm:
            norms = values.flatten(1).norm(dim=1).clamp_min(1e-30)
            values = values / norms.view(-1, *[1] * (values.dim() - 1))
        return values

    def example(self, count: int) -> Tensor:
        """Samples of the shape that the module takes."""
        columns = self.inputs.preparation.columns
        if columns is not None:
            return torch.zeros(count, len(columns), dtype=torch.float64)
        whole = not self.inputs.input_type.is_floating_point
        kind = self.inputs.input_type if whole else torch.float32
        return torch.zeros(count, *self.inputs.input_shape, dtype=kind)

    def facts(self) -> dict[str, Any]:
        """What a user of the file has to know."""
        columns = self.inputs.preparation.columns
        return {
            "classes": [self.inputs.class_name(c) for c in range(self.inputs.num_classes or 0)],
            "columns": columns and [_meaning(column) for column in columns],
        }


def own_units(outputs: Tensor, inputs: Inputs) -> Tensor:
    """Predicted numbers in the target's own units."""
    if inputs.preparation.target is None:
        return outputs
    mean, deviation = inputs.preparation.target
    return outputs * deviation + mean


def probabilities(outputs: Tensor, inputs: Inputs) -> Tensor:
    """Of every class; outputs as they are where the loss gives no probabilities."""
    loss = LOSSES.get(inputs.loss)
    if loss is None or not loss.probabilities:
        return outputs
    if loss.binary:
        yes = torch.sigmoid(outputs[:, :1])
        return torch.cat([1 - yes, yes], 1)
    return outputs.softmax(1)


def _meaning(column: Column) -> dict[str, Any]:
    found: dict[str, Any] = {"name": column.name, "kind": column.kind}
    if isinstance(column, CategoryColumn):
        found["values"] = list(column.values)
    return found


def _block(column: Column, raw: Tensor) -> Tensor:
    """As the column's own `block`, on numbers."""
    missing = raw.isnan()
    if isinstance(column, CategoryColumn):
        values = list(column.values)
        common = float(values.index(column.commonest)) if column.commonest in values else -1.0
        codes = torch.where(missing, common, raw)
        known = (codes[:, None] == torch.arange(len(column.values))).float()
        parts = [known]
        if column.other:
            parts.append(1 - known.sum(1, keepdim=True))
        block = torch.cat(parts, 1)
        if column.indicator:
            gone = missing.float()[:, None]
            block = torch.cat([block * (1 - gone), gone], 1)
        return block
    filled = torch.where(missing, column.median, raw)
    parts = [((filled - column.mean) / column.deviation).float()]
    if isinstance(column, NumberColumn) and column.indicator:
        parts.append(missing.float())
    if isinstance(column, DateColumn):
        for period in column.periods:
            angle = 2 * math.pi * (filled / period - (filled / period).floor())
            parts += [angle.sin().float(), angle.cos().float()]
    return torch.stack(parts, 1)
