"""Common layers with gradients written out: batched matrix products, no autograd.

Every layer carries all rows at once. Gradients go straight into views of one flat
[B, d] buffer, so nothing is split, joined or copied. Convolutions have no batched
form that is fast on a CPU: they go row by row, in channels-last order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.core.kernels.spec import CHANNELS
from fedkin.models.layout import Slot

aten = torch.ops.aten

# for one example and a weight of few numbers a product element by element beats matrix products
FEW = 4096


class UnsupportedLayerError(Exception):
    """The module is not a plain chain of layers with gradients written out here."""


@dataclass(frozen=True)
class Into:
    """Where gradients go: into views of `rows` [B, d], or on top of what is there (`add`), which
    is before that drawn towards other models by a share of the way (`pull`), and from which a
    multiple (`times`) of others is taken away (`minus`)."""

    rows: Tensor
    add: bool = False
    towards: Tensor | None = None
    pull: Any = 0.0
    minus: Tensor | None = None
    times: Any = 1.0

    def of(self, slot: Slot, i: int | None = None) -> Tensor:
        """The place of a parameter (of row i alone). Ask once, and after the last look at v."""
        chosen = slice(None) if i is None else slice(i, i + 1)
        target = slot.view(self.rows[chosen])

        def own(models: Tensor) -> Tensor:
            return slot.view(models if len(models) == 1 else models[chosen])

        def number(value: Any) -> Any:
            """A number, or a column for these rows with the target's dimensions."""
            if not isinstance(value, Tensor):
                return value
            column = value.expand(len(self.rows), 1)[chosen]
            return column.view(len(target), *[1] * (target.dim() - 1))

        if self.towards is not None:
            target.lerp_(own(self.towards), number(self.pull))
        if self.minus is not None:
            times = number(self.times)
            if isinstance(times, Tensor):
                target.addcmul_(times, own(self.minus), value=-1)
            else:
                target.sub_(own(self.minus), alpha=times)
        return target if i is None else target[0]

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

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def backward(
        self, v: Tensor, kept: Any, gy: Tensor, into: Into, first: bool
    ) -> Tensor | None:
        raise NotImplementedError


class Linear(Layer):
    learns = True

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
        self, v: Tensor, kept: Any, gy: Tensor, into: Into, first: bool
    ) -> Tensor | None:
        assert self.weight is not None
        slopes = gy.flatten(1, -2)
        # by the input first: the weights may be changed in what follows
        gx = None if first else torch.bmm(slopes, self.weight.view(v))
        target, turned = into.of(self.weight), slopes.transpose(1, 2)
        single = kept.shape[1] == 1 and target[0].numel() <= FEW
        if into.add:
            target.addcmul_(turned, kept) if single else target.baddbmm_(turned, kept)
        elif single:
            torch.mul(turned, kept, out=target)
        else:
            torch.bmm(turned, kept, out=target)
        if self.bias is not None:
            into.put(slopes.sum(1), self.bias)
        return None if gx is None else gx.unflatten(1, gy.shape[1:-1])


class Convolution(Layer):
    learns = True

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
        self, v: Tensor, kept: Any, gy: Tensor, into: Into, first: bool
    ) -> Tensor | None:
        assert self.weight is not None
        m, (inputs, kernels) = self.module, kept
        wanted = [not first, True, self.bias is not None]
        sizes = None if self.bias is None else list(self.bias.shape)
        input_slopes = []
        for i in range(len(v)):
            gx, gw, gb = aten.convolution_backward(
                gy[i], inputs[i], kernels[i], sizes, m.stride, m.padding, m.dilation,
                False, [0, 0], m.groups, wanted,
            )  # fmt: skip
            into.put(gw, self.weight, i)
            if self.bias is not None:
                into.put(gb, self.bias, i)
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
        self, v: Tensor, kept: Any, gy: Tensor, into: Into, first: bool
    ) -> Tensor | None:
        images, chosen = kept
        slopes = gy.flatten(0, 1)
        if images.is_contiguous(memory_format=torch.channels_last):
            slopes = slopes.contiguous(memory_format=torch.channels_last)
        gx = aten.max_pool2d_with_indices_backward(slopes, images, *self.options, chosen)
        by_row: Tensor = gx.unflatten(0, gy.shape[:2])
        return by_row


class Activation(Layer):
    """An element-wise function whose derivative follows from its output, or from its input."""

    def __init__(
        self, forward: Callable[[Tensor], Tensor], slope: Callable[[Tensor, Tensor], Tensor],
        bend: Callable[[Tensor, Tensor], Tensor] | None = None, by_input: bool = False,
    ) -> None:  # fmt: skip
        """`slope(gy, z)` is the derivative times gy, with the output z (or, `by_input`, the
        input); `bend(z, dz)` is its change when z changes by dz (None: it does not change)."""
        self._forward, self.slope, self.bend, self.by_input = forward, slope, bend, by_input

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        out = self._forward(x)
        return out, x if self.by_input else out

    def backward(
        self, v: Tensor, kept: Any, gy: Tensor, into: Into, first: bool
    ) -> Tensor | None:
        return self.slope(gy, kept)


class LayerNorm(Layer):
    """y = w*z + b for every example's own z = (x - mean)/deviation."""

    def __init__(self, module: nn.LayerNorm, slots: dict[str, Slot]) -> None:
        self.weight, self.bias = slots.get("weight"), slots.get("bias")
        for own, slot in ((module.weight, self.weight), (module.bias, self.bias)):
            if (own is not None) != (slot is not None):
                raise UnsupportedLayerError("a partly frozen layer norm")
        self.shape, self.eps = list(module.normalized_shape), module.eps
        self.learns = self.weight is not None

    def beside(self, slot: Slot | None, v: Tensor, x: Tensor) -> Tensor | None:
        """A parameter of every row, with as many dimensions as the examples x."""
        if slot is None:
            return None
        return slot.view(v).view(len(v), *[1] * (x.dim() - 1 - len(self.shape)), *self.shape)

    def over_examples(self, x: Tensor) -> Tensor:
        """Sums over all but rows and what is normed."""
        return x.flatten(1, -1 - len(self.shape)).sum(1)

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        z, mean, scale = aten.native_layer_norm(x, self.shape, None, None, self.eps)
        weight, bias = self.beside(self.weight, v, x), self.beside(self.bias, v, x)
        out = z if weight is None else z * weight
        return out if bias is None else out + bias, (x, z, mean, scale)

    def backward(
        self, v: Tensor, kept: Any, gy: Tensor, into: Into, first: bool
    ) -> Tensor | None:
        x, z, mean, scale = kept
        weight, gx = self.beside(self.weight, v, x), None
        if not first:
            gz = gy if weight is None else gy * weight
            gx = aten.native_layer_norm_backward(
                gz, x, self.shape, mean, scale, None, None, [True, False, False]
            )[0]
        if self.weight is not None:
            into.put(self.over_examples(gy * z), self.weight)
        if self.bias is not None:
            into.put(self.over_examples(gy), self.bias)
        return gx


class Flatten(Layer):
    def __init__(self, module: nn.Flatten, slots: dict[str, Slot]) -> None:
        if (module.start_dim, module.end_dim) != (1, -1):
            raise UnsupportedLayerError("flattening of some dimensions only")

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        return x.flatten(2), x.shape

    def backward(
        self, v: Tensor, kept: Any, gy: Tensor, into: Into, first: bool
    ) -> Tensor | None:
        return gy.reshape(kept)


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


def _gelu(module: nn.GELU, slots: dict[str, Slot]) -> Activation:
    """x*P(X < x) for a normal X: its second derivative is (2 - x^2) times the density."""
    if module.approximate != "none":
        raise UnsupportedLayerError("an approximate GELU")

    def bend(x: Tensor, dx: Tensor) -> Tensor:
        density = torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
        return (2 - x.square()) * density * dx

    return Activation(F.gelu, aten.gelu_backward, bend, by_input=True)


def _silu_bend(x: Tensor, dx: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 - s) * (2 + x * (1 - 2 * s)) * dx


LAYERS: dict[type[nn.Module], Callable[[Any, dict[str, Slot]], Layer]] = {
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
    nn.GELU: _gelu,
    nn.SiLU: lambda m, s: Activation(F.silu, aten.silu_backward, _silu_bend, by_input=True),
    nn.LayerNorm: LayerNorm,
}
