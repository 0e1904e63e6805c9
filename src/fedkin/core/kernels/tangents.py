"""Second derivatives of chains of layers, written out: H(v) u without autograd.

Beside everything that the gradient computes goes its change as v moves along u (Pearlmutter,
1994): dx is the change of a layer's input (None: it does not change), dy that of its output,
dslope that of the gradient by its output. It costs two to three gradients, and less than two
where the gradient at v itself is wanted as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.core import rng
from fedkin.core.kernels.convolutions import Convolution, MaxPool
from fedkin.core.kernels.layer import Into, Layer, aten
from fedkin.core.kernels.layers import Activation, Flatten, LayerNorm, Linear
from fedkin.core.kernels.native import Native


class Walked(NamedTuple):
    """What a pass forward and back at v leaves: of every layer what its derivatives need, its
    output's shape and the gradient by it; the chain's outputs and targets, and the weights of
    examples."""

    kept: list[Any]
    shapes: list[torch.Size]
    slopes: list[Tensor]
    outputs: Tensor
    targets: Tensor
    weights: Any


class NativeTwice(Native):
    """The chain with first and second derivatives written out."""

    def hvp(
        self, v: Tensor, u: Tensor, x: Tensor, y: Tensor, w: Tensor | None,
        noise: rng.Bits | None = None,
    ) -> Tensor:  # fmt: skip
        return self._turn(v, u, self._walk(v, x, y, w))

    def turning(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The gradient at v, and what gives H(v) u for any u without walking to v again."""
        g = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        walked = self._walk(v, x, y, w, g)
        return g, lambda u: self._turn(v, u, walked)

    def _walk(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, g: Tensor | None = None
    ) -> Walked:
        """Forward and back; the gradient is written into g, where given."""
        kept, shapes = [], []
        for layer in self.layers:
            x, own = layer.forward(v, x)
            kept.append(own)
            shapes.append(x.shape)
        outputs, targets = x.flatten(0, 1), y.flatten(0, 1)
        by_example = 1 / x.shape[1] if w is None else w.reshape(*w.shape, *[1] * (x.dim() - 2))
        slope: Tensor | None = self.spec.loss.derivative(outputs, targets).view_as(x) * by_example
        slopes = []
        for i in reversed(range(self.first, len(self.layers))):
            assert slope is not None
            slopes.append(slope)
            if g is not None:
                slope = self.layers[i].backward(v, kept[i], slope, Into(g), i == self.first)
            elif i > self.first:
                slope = by_input(self.layers[i], v, kept[i], slope)
        return Walked(kept, shapes, slopes[::-1], outputs, targets, by_example)

    def _turn(self, v: Tensor, u: Tensor, at: Walked) -> Tensor:
        """H(v) u [B, d] of the weighted loss."""
        changes = list[Tensor | None]([None])
        for layer, own, shape in zip(self.layers, at.kept, at.shapes, strict=True):
            dy = ahead(layer, u, v, own, changes[-1])
            changes.append(None if dy is None else dy.view(shape))
        along = changes[-1]
        assert along is not None
        turned = self.spec.loss.turn(at.outputs, at.targets, along.flatten(0, 1)).view_as(along)
        dslope: Tensor | None = turned * at.weights
        product = torch.empty_like(v, memory_format=torch.contiguous_format)
        for i in reversed(range(self.first, len(self.layers))):
            assert dslope is not None
            kept = (at.kept[i], changes[i], changes[i + 1])
            slope = at.slopes[i - self.first]
            dslope = back(self.layers[i], u, v, kept, slope, dslope, product, i == self.first)
        return product


def by_input(layer: Layer, v: Tensor, kept: Any, slope: Tensor) -> Tensor | None:
    """The gradient by a layer's input alone."""
    if isinstance(layer, Linear):
        assert layer.weight is not None
        found: Tensor = torch.bmm(slope.flatten(1, -2), layer.weight.view(v))
        return found.view(*slope.shape[:-1], -1)
    if isinstance(layer, LayerNorm):
        x, z, _, scale = kept
        weight = layer.beside(layer.weight, v, x)
        moved: Tensor = scale * _without(layer, slope if weight is None else slope * weight, z)
        return moved
    if isinstance(layer, Convolution):
        pairs = zip(slope, *kept, strict=True)
        return torch.stack([_pull(layer, gy, x, kernel, True, False)[0] for gy, x, kernel in pairs])
    return layer.backward(v, kept, slope, Into(slope), False)


def ahead(layer: Layer, u: Tensor, v: Tensor, kept: Any, dx: Tensor | None) -> Tensor | None:
    """dy, the change of a layer's output."""
    if isinstance(layer, Linear):
        assert layer.weight is not None
        moved = Linear.forward(layer, u, kept)[0]
        if dx is None:
            return moved
        return torch.baddbmm(moved, dx.flatten(1, -2), layer.weight.view(v).transpose(1, 2))
    if isinstance(layer, LayerNorm):
        return _ahead_norm(layer, u, v, kept, dx)
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
) -> Tensor | None:  # fmt: skip
    """Writes the layer's part of the product; the change of the gradient by its input."""
    own, dx, dy = kept
    if isinstance(layer, Linear):
        assert layer.weight is not None
        target, shape = layer.weight.view(product), slope.shape[1:-1]
        slope, dslope = slope.flatten(1, -2), dslope.flatten(1, -2)
        torch.bmm(dslope.transpose(1, 2), own, out=target)
        if dx is not None:
            target.baddbmm_(slope.transpose(1, 2), dx.flatten(1, -2))
        if layer.bias is not None:
            layer.bias.view(product).copy_(dslope.sum(1))
        if first:
            return None
        moved = torch.bmm(slope, layer.weight.view(u))
        return torch.baddbmm(moved, dslope, layer.weight.view(v)).view(len(moved), *shape, -1)
    if isinstance(layer, Convolution):
        return _back_convolution(layer, u, own, dx, slope, dslope, product, first)
    if isinstance(layer, LayerNorm):
        return _back_norm(layer, u, v, own, dx, slope, dslope, product, first)
    if isinstance(layer, Activation):
        moved = layer.slope(dslope, own)
        change = dx if layer.by_input else dy
        if change is not None and layer.bend is not None:
            moved = moved + slope * layer.bend(own, change)
        return moved
    return layer.backward(v, own, dslope, Into(product), first)


def _convolve(layer: Convolution, x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    m = layer.module
    return F.conv2d(x, kernel, bias, m.stride, m.padding, m.dilation, m.groups)


def _pull(
    layer: Convolution, gy: Tensor, x: Tensor, kernel: Tensor, to_input: bool, to_kernel: bool
) -> Any:
    m = layer.module
    return aten.convolution_backward(
        gy, x, kernel, None, m.stride, m.padding, m.dilation, False, [0, 0], m.groups,
        [to_input, to_kernel, False],
    )  # fmt: skip


def _back_convolution(
    layer: Convolution, u: Tensor, own: Any, dx: Tensor | None, slope: Tensor, dslope: Tensor,
    product: Tensor, first: bool,
) -> Tensor | None:  # fmt: skip
    assert layer.weight is not None
    (inputs, kernels), rows = own, list[Tensor]()
    target, filters = layer.weight.view(product), layer.weight.view(u)
    for i in range(len(u)):
        x, kernel = inputs[i], kernels[i]
        moved, weight, _ = _pull(layer, dslope[i], x, kernel, not first, True)
        if dx is not None:
            weight = weight + _pull(layer, slope[i], dx[i], kernel, False, True)[1]
        target[i].copy_(weight)
        if not first:
            rows.append(moved + _pull(layer, slope[i], x, filters[i], True, False)[0])
    if layer.bias is not None:
        layer.bias.view(product).copy_(dslope.sum((1, 3, 4)))
    return None if first else torch.stack(rows)


def _ahead_norm(
    layer: LayerNorm, u: Tensor, v: Tensor, kept: Any, dx: Tensor | None
) -> Tensor | None:
    x, z, _, scale = kept
    weight, along = layer.beside(layer.weight, v, x), layer.beside(layer.weight, u, x)
    parts = [layer.beside(layer.bias, u, x), None if along is None else along * z]
    if dx is not None:
        dz = scale * _without(layer, dx, z)
        parts.append(dz if weight is None else weight * dz)
    changes = [part for part in parts if part is not None]
    return sum(changes[1:], changes[0]) if changes else None


def _back_norm(
    layer: LayerNorm, u: Tensor, v: Tensor, own: Any, dx: Tensor | None, slope: Tensor,
    dslope: Tensor, product: Tensor, first: bool,
) -> Tensor | None:  # fmt: skip
    """With h = slope*w: the gradient by the input is s*(h - mean(h) - z*mean(h*z))."""
    x, z, _, s = own
    weight, along = layer.beside(layer.weight, v, x), layer.beside(layer.weight, u, x)
    dz = None if dx is None else s * _without(layer, dx, z)
    if layer.weight is not None:
        change = dslope * z if dz is None else dslope * z + slope * dz
        layer.weight.view(product).copy_(layer.over_examples(change))
    if layer.bias is not None:
        layer.bias.view(product).copy_(layer.over_examples(dslope))
    if first:
        return None
    h = slope if weight is None else slope * weight
    dh = dslope if weight is None or along is None else dslope * weight + slope * along
    moved: Tensor = s * _without(layer, dh, z)
    if dx is not None and dz is not None:
        ds = -s * _mean(layer, z * dx)  # relative to s
        turned = dz * _mean(layer, h * z) + z * _mean(layer, h * dz)
        moved = moved + s * (ds * _without(layer, h, z) - turned)
    return moved


def _mean(layer: LayerNorm, x: Tensor) -> Tensor:
    return x.mean(tuple(range(-len(layer.shape), 0)), keepdim=True)


def _without(layer: LayerNorm, x: Tensor, z: Tensor) -> Tensor:
    """x without its mean and what goes along z."""
    return x - _mean(layer, x) - z * _mean(layer, x * z)
