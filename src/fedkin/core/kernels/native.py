"""Chains of common layers with gradients written out: batched matrix products, no autograd.

Every layer carries all rows at once. Gradients go straight into views of one flat
[B, d] buffer, so nothing is split, joined or copied. Convolutions have no batched
form that is fast on a CPU: they go row by row, in channels-last order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.core import rng
from fedkin.core.kernels.spec import CHANNELS, ModelSpec, weights
from fedkin.models.layout import Slot

aten = torch.ops.aten

# for one example and a weight of few numbers a product element by element beats matrix products
FEW = 4096


class UnsupportedLayerError(Exception):
    """The module is not a plain chain of layers with gradients written out here."""


class Layer:
    """`forward` gives the output and what `backward` needs of it.

    `backward` writes the gradients of the layer's own parameters into g [B, d], or adds them to
    what is there, which may be v itself. It gives the gradient by the layer's input (None for
    the first layer: nobody needs it).
    """

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def backward(
        self, v: Tensor, kept: Any, gy: Tensor, g: Tensor, add: bool, first: bool
    ) -> Tensor | None:
        raise NotImplementedError


class Linear(Layer):
    def __init__(self, module: nn.Linear, slots: dict[str, Slot]) -> None:
        self.weight, self.bias = slots.get("weight"), slots.get("bias")
        if self.weight is None or (module.bias is not None) != (self.bias is not None):
            raise UnsupportedLayerError("a partly frozen linear layer")

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        assert self.weight is not None
        rows = x.flatten(1, -2)
        weight = self.weight.view(v)
        if rows.shape[1] == 1 and weight[0].numel() <= FEW:
            out = (weight * rows).sum(2).unsqueeze(1)
            out = out if self.bias is None else out + self.bias.view(v).unsqueeze(1)
            return out.unflatten(1, x.shape[1:-1]), rows
        transposed = weight.transpose(1, 2)
        if self.bias is None:
            out = torch.bmm(rows, transposed)
        else:
            out = torch.baddbmm(self.bias.view(v).unsqueeze(1), rows, transposed)
        return out.unflatten(1, x.shape[1:-1]), rows

    def backward(
        self, v: Tensor, kept: Any, gy: Tensor, g: Tensor, add: bool, first: bool
    ) -> Tensor | None:
        assert self.weight is not None
        slopes = gy.flatten(1, -2)
        target, turned = self.weight.view(g), slopes.transpose(1, 2)
        # by the input first: the weights may be changed in what follows
        gx = None if first else torch.bmm(slopes, self.weight.view(v))
        single = kept.shape[1] == 1 and target[0].numel() <= FEW
        if add:
            target.addcmul_(turned, kept) if single else target.baddbmm_(turned, kept)
        elif single:
            torch.mul(turned, kept, out=target)
        else:
            torch.bmm(turned, kept, out=target)
        if self.bias is not None:
            _put(slopes.sum(1), self.bias.view(g), add)
        return None if gx is None else gx.unflatten(1, gy.shape[1:-1])


class Convolution(Layer):
    def __init__(self, module: nn.Conv2d, slots: dict[str, Slot]) -> None:
        self.weight, self.bias, self.module = slots.get("weight"), slots.get("bias"), module
        if self.weight is None or (module.bias is not None) != (self.bias is not None):
            raise UnsupportedLayerError("a partly frozen convolution")
        if isinstance(module.padding, str) or module.padding_mode != "zeros":
            raise UnsupportedLayerError("a convolution with named padding")

    def _ordered(self, images: Tensor) -> Tensor:
        """In the order in which convolutions are fastest, where that is safe."""
        m = self.module
        # images have few channels, and nobody asks for the gradient by them
        many = m.out_channels >= CHANNELS and (m.in_channels >= CHANNELS or m.in_channels <= 3)
        return _channels_last(images) if many else images.contiguous()

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        assert self.weight is not None
        m = self.module
        filters = self.weight.view(v)
        biases = None if self.bias is None else self.bias.view(v)
        inputs, kernels, outputs = [], [], []
        for i in range(len(v)):
            inputs.append(self._ordered(x[i]))
            kernels.append(self._ordered(filters[i]))
            outputs.append(
                F.conv2d(
                    inputs[i], kernels[i], None if biases is None else biases[i],
                    m.stride, m.padding, m.dilation, m.groups,
                )
            )  # fmt: skip
        return _rows(outputs), (inputs, kernels)

    def backward(
        self, v: Tensor, kept: Any, gy: Tensor, g: Tensor, add: bool, first: bool
    ) -> Tensor | None:
        assert self.weight is not None
        m, (inputs, kernels) = self.module, kept
        wanted = [not first, True, self.bias is not None]
        sizes = None if self.bias is None else list(self.bias.shape)
        weight_slopes = self.weight.view(g)
        input_slopes = []
        for i in range(len(v)):
            gx, gw, gb = aten.convolution_backward(
                gy[i], inputs[i], kernels[i], sizes, m.stride, m.padding, m.dilation,
                False, [0, 0], m.groups, wanted,
            )  # fmt: skip
            _put(gw, weight_slopes[i], add)
            if self.bias is not None:
                _put(gb, self.bias.view(g)[i], add)
            input_slopes.append(gx)
        return None if first else _rows(input_slopes)


class MaxPool(Layer):
    def __init__(self, module: nn.MaxPool2d, slots: dict[str, Slot]) -> None:
        if module.return_indices:
            raise UnsupportedLayerError("pooling that returns indices")
        sizes = (module.kernel_size, module.stride, module.padding, module.dilation)
        self.options: tuple[Any, ...] = (*map(_pair, sizes), module.ceil_mode)

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        images = x.flatten(0, 1)
        out, chosen = aten.max_pool2d_with_indices(images, *self.options)
        return out.unflatten(0, x.shape[:2]), (images, chosen)

    def backward(
        self, v: Tensor, kept: Any, gy: Tensor, g: Tensor, add: bool, first: bool
    ) -> Tensor | None:
        images, chosen = kept
        slopes = gy.flatten(0, 1)
        if images.is_contiguous(memory_format=torch.channels_last):
            slopes = slopes.contiguous(memory_format=torch.channels_last)
        gx = aten.max_pool2d_with_indices_backward(slopes, images, *self.options, chosen)
        by_row: Tensor = gx.unflatten(0, gy.shape[:2])
        return by_row


class Activation(Layer):
    """An element-wise function whose derivative follows from its own output."""

    def __init__(
        self, forward: Callable[[Tensor], Tensor], slope: Callable[[Tensor, Tensor], Tensor],
        bend: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        """`slope(gy, y)` is the derivative times gy; `bend(y, dy)` its change when y changes by
        dy (None: it does not change)."""
        self._forward, self.slope, self.bend = forward, slope, bend

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        out = self._forward(x)
        return out, out

    def backward(
        self, v: Tensor, kept: Any, gy: Tensor, g: Tensor, add: bool, first: bool
    ) -> Tensor | None:
        return self.slope(gy, kept)


class Flatten(Layer):
    def __init__(self, module: nn.Flatten, slots: dict[str, Slot]) -> None:
        if (module.start_dim, module.end_dim) != (1, -1):
            raise UnsupportedLayerError("flattening of some dimensions only")

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        return x.flatten(2), x.shape

    def backward(
        self, v: Tensor, kept: Any, gy: Tensor, g: Tensor, add: bool, first: bool
    ) -> Tensor | None:
        return gy.reshape(kept)


def _put(gradient: Tensor, target: Tensor, add: bool) -> None:
    target.add_(gradient) if add else target.copy_(gradient)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def _channels_last(images: Tensor) -> Tensor:
    """In channels-last order, also in name where there is one channel and the orders coincide.

    Otherwise a convolution of grey images answers in the other order, which makes
    pooling seven times slower.
    """
    if images.shape[1] == 1:
        height, width = images.shape[2:]
        return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))
    return images.contiguous(memory_format=torch.channels_last)


def _rows(tensors: list[Tensor]) -> Tensor:
    """Stack rows; a single row keeps its memory and its channels-last order."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)


_LAYERS: dict[type[nn.Module], Callable[[Any, dict[str, Slot]], Layer]] = {
    nn.Linear: Linear,
    nn.Conv2d: Convolution,
    nn.MaxPool2d: MaxPool,
    nn.Flatten: Flatten,
    nn.ReLU: lambda m, s: Activation(torch.relu, lambda gy, y: aten.threshold_backward(gy, y, 0)),
    nn.Tanh: lambda m, s: Activation(
        torch.tanh, aten.tanh_backward, lambda y, dy: -2 * y * dy
    ),
    nn.Sigmoid: lambda m, s: Activation(
        torch.sigmoid, aten.sigmoid_backward, lambda y, dy: (1 - 2 * y) * dy
    ),
}


def _pool_first(chain: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """ReLU and max pooling commute; after pooling there is less left for ReLU to do."""
    for i in range(len(chain) - 1):
        if type(chain[i][1]) is nn.ReLU and type(chain[i + 1][1]) is nn.MaxPool2d:
            chain[i], chain[i + 1] = chain[i + 1], chain[i]
    return chain


def _chain(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential:
        for name, child in module.named_children():
            yield from _chain(child, f"{prefix}{name}.")
    elif type(module) is not nn.Identity:
        yield prefix, module


class Native:
    """Forward and backward through the chain, for all rows of a block together."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.layers: list[Layer] = []
        for prefix, module in _pool_first(list(_chain(spec.module, ""))):
            if type(module) not in _LAYERS:
                raise UnsupportedLayerError(type(module).__name__)
            own = {
                slot.name.removeprefix(prefix): slot
                for slot in spec.layout.slots
                if slot.name.startswith(prefix)
            }
            self.layers.append(_LAYERS[type(module)](module, own))
        # what lies before the first layer with parameters needs no gradients
        learning = [isinstance(layer, Linear | Convolution) for layer in self.layers]
        self.first = learning.index(True)

    def outputs(self, v: Tensor, x: Tensor, statistics: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x, _ = layer.forward(v, x)
        return x

    def _backward(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, g: Tensor,
        add: bool = False, factor: Any = 1.0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Writes `factor` times the gradient at v into g, or adds it to what is there."""
        kept = []
        for layer in self.layers:
            x, keep = layer.forward(v, x)
            kept.append(keep)
        outputs, targets = x.flatten(0, 1), y.flatten(0, 1)
        slope: Tensor | None = self.spec.loss.derivative(outputs, targets).view_as(x)
        assert slope is not None
        if w is not None:
            factor = factor * w
        elif x.shape[1] > 1:
            factor = factor / x.shape[1]
        if isinstance(factor, Tensor):
            factor = factor.reshape(*factor.shape, *[1] * (x.dim() - 2))
        if isinstance(factor, Tensor) or factor != 1:
            slope = slope * factor
        for i in reversed(range(self.first, len(self.layers))):
            assert slope is not None
            slope = self.layers[i].backward(v, kept[i], slope, g, add, first=i == self.first)
        return outputs, targets

    def grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> Tensor:
        g = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        self._backward(v, x, y, w, g)
        return g

    def descend_(
        self, v: Tensor, lr: Any, x: Tensor, y: Tensor, w: Tensor | None, into: Tensor
    ) -> Tensor:
        """into <- into - lr*gradient at v, for a number or a column lr; into may be v: no pass
        over gradients, which are never written down."""
        self._backward(v, x, y, w, into, add=True, factor=-lr)
        return into

    def value_and_grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> tuple[Tensor, Tensor]:
        g = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        outputs, targets = self._backward(v, x, y, w, g)
        losses = self.spec.loss.value(outputs, targets).view(y.shape[:2])
        return (losses * weights(w, losses)).sum(1, keepdim=True), g
