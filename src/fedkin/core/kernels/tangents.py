"""Second derivatives of chains of layers, written out: H(v) u without autograd.

Beside everything that the gradient computes goes its change as v moves along u (Pearlmutter,
1994): dx is the change of a layer's input (None: it does not change), dy that of its output,
dslope that of the gradient by its output. It costs two to three gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.core import rng
from fedkin.core.kernels.native import (
    Activation,
    Convolution,
    Flatten,
    Layer,
    Linear,
    MaxPool,
    Native,
    aten,
)
from fedkin.core.losses import Loss

Slopes = tuple[Tensor | None, Tensor | None]


class NativeTwice(Native):
    """The chain with first and second derivatives written out."""

    def hvp(
        self, v: Tensor, u: Tensor, x: Tensor, y: Tensor, w: Tensor | None,
        noise: rng.Bits | None = None,
    ) -> Tensor:  # fmt: skip
        return hessian_product(self.layers, self.first, self.spec.loss, v, u, x, y, w)


def hessian_product(
    layers: list[Layer], first: int, loss: Loss, v: Tensor, u: Tensor, x: Tensor, y: Tensor,
    w: Tensor | None,
) -> Tensor:  # fmt: skip
    """H(v) u [B, d] of the weighted loss; `first` is the first layer with parameters."""
    kept, dx = list[tuple[Any, Tensor | None, Tensor | None]](), None
    for layer in layers:
        x, own = layer.forward(v, x)
        before, dx = dx, ahead(layer, u, v, own, dx)
        kept.append((own, before, dx))
    assert dx is not None
    outputs, targets, along = x.flatten(0, 1), y.flatten(0, 1), dx.flatten(0, 1)
    by_example = 1 / x.shape[1] if w is None else w.reshape(*w.shape, *[1] * (x.dim() - 2))
    slope: Tensor | None = loss.derivative(outputs, targets).view_as(x) * by_example
    dslope: Tensor | None = loss.turn(outputs, targets, along).view_as(x) * by_example
    product = torch.empty_like(v, memory_format=torch.contiguous_format)
    for i in reversed(range(first, len(layers))):
        assert slope is not None
        assert dslope is not None
        slope, dslope = back(layers[i], u, v, kept[i], slope, dslope, product, i == first)
    return product


def ahead(layer: Layer, u: Tensor, v: Tensor, kept: Any, dx: Tensor | None) -> Tensor | None:
    """dy, the change of a layer's output."""
    if isinstance(layer, Linear):
        assert layer.weight is not None
        moved = Linear.forward(layer, u, kept)[0]
        return moved if dx is None else moved + torch.bmm(dx, layer.weight.view(v).transpose(1, 2))
    if isinstance(layer, Convolution):
        assert layer.weight is not None
        inputs, kernels = kept
        filters, biases = layer.weight.view(u), None if layer.bias is None else layer.bias.view(u)
        rows = []
        for i in range(len(u)):
            dy = _convolve(layer, inputs[i], filters[i], None if biases is None else biases[i])
            rows.append(dy if dx is None else dy + _convolve(layer, dx[i], kernels[i], None))
        return torch.stack(rows)
    if dx is None:
        return None
    if isinstance(layer, Activation):
        return layer.slope(dx, kept)
    if isinstance(layer, Flatten):
        return dx.flatten(2)
    assert isinstance(layer, MaxPool)
    _, chosen = kept
    picked = dx.flatten(0, 1).flatten(2).gather(2, chosen.flatten(2))
    return picked.view(*dx.shape[:2], *chosen.shape[1:])


def back(
    layer: Layer, u: Tensor, v: Tensor, kept: tuple[Any, Tensor | None, Tensor | None],
    slope: Tensor, dslope: Tensor, product: Tensor, first: bool,
) -> Slopes:  # fmt: skip
    """Writes the layer's part of the product; slope and dslope by its input."""
    own, dx, dy = kept
    if isinstance(layer, Linear):
        assert layer.weight is not None
        target = layer.weight.view(product)
        torch.bmm(dslope.transpose(1, 2), own, out=target)
        if dx is not None:
            target.baddbmm_(slope.transpose(1, 2), dx)
        if layer.bias is not None:
            layer.bias.view(product).copy_(dslope.sum(1))
        if first:
            return None, None
        weight = layer.weight.view(v)
        moved = torch.baddbmm(torch.bmm(slope, layer.weight.view(u)), dslope, weight)
        return torch.bmm(slope, weight), moved
    if isinstance(layer, Convolution):
        return _back_convolution(layer, u, own, dx, slope, dslope, product, first)
    if isinstance(layer, Activation):
        moved = layer.slope(dslope, own)
        if dy is not None and layer.bend is not None:
            moved = moved + slope * layer.bend(own, dy)
        return layer.slope(slope, own), moved
    both = (layer.backward(v, own, part, product, False, first) for part in (slope, dslope))
    by_input, moved_by_input = both
    return by_input, moved_by_input


def _convolve(layer: Convolution, x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    m = layer.module
    return F.conv2d(x, kernel, bias, m.stride, m.padding, m.dilation, m.groups)


def _back_convolution(
    layer: Convolution, u: Tensor, own: Any, dx: Tensor | None, slope: Tensor, dslope: Tensor,
    product: Tensor, first: bool,
) -> Slopes:  # fmt: skip
    assert layer.weight is not None
    m, (inputs, kernels), rows = layer.module, own, list[tuple[Tensor, Tensor]]()
    target, filters = layer.weight.view(product), layer.weight.view(u)

    def pull(gy: Tensor, x: Tensor, kernel: Tensor, by_input: bool, by_kernel: bool) -> Any:
        return aten.convolution_backward(
            gy, x, kernel, None, m.stride, m.padding, m.dilation, False, [0, 0], m.groups,
            [by_input, by_kernel, False],
        )  # fmt: skip

    for i in range(len(u)):
        x, kernel = inputs[i], kernels[i]
        moved, weight, _ = pull(dslope[i], x, kernel, not first, True)
        if dx is not None:
            weight = weight + pull(slope[i], dx[i], kernel, False, True)[1]
        target[i].copy_(weight)
        if not first:
            moved = moved + pull(slope[i], x, filters[i], True, False)[0]
            rows.append((pull(slope[i], x, kernel, True, False)[0], moved))
    if layer.bias is not None:
        layer.bias.view(product).copy_(dslope.sum((1, 3, 4)))
    if first:
        return None, None
    return torch.stack([gx for gx, _ in rows]), torch.stack([moved for _, moved in rows])
