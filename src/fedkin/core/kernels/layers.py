"""Common layers with gradients written out: batched matrix products, no autograd.

Every layer carries all rows at once. Gradients go straight into views of one flat
[B, d] buffer, so nothing is split, joined or copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.core.kernels.convolutions import Convolution, MaxPool
from fedkin.core.kernels.layer import Into, Layer, UnsupportedLayerError, aten
from fedkin.core.losses import LANES
from fedkin.models.layout import Models, Slot

# for one example and a weight of few numbers a product element by element beats matrix products;
# for several examples a product of its own, added, beats one that adds itself row by row
FEW = 4096


class Linear(Layer):
    learns = True

    def __init__(self, module: nn.Linear, slots: dict[str, Slot]) -> None:
        self.weight, self.bias = slots.get("weight"), slots.get("bias")
        if self.weight is None or (module.bias is not None) != (self.bias is not None):
            raise UnsupportedLayerError("a partly frozen linear layer")

    def forward(self, v: Models, x: Tensor) -> tuple[Tensor, Any]:
        assert self.weight is not None
        weight, plain = self.weight.view(v), x.dim() == 3
        rows = x if plain else x.flatten(1, -2)
        if rows.shape[1] == 1 and self.weight.size <= FEW:
            out = (weight * rows).sum(2).unsqueeze(1)
        elif weight.shape[1] < min(LANES, rows.shape[1]):
            out = torch.bmm(weight, rows.transpose(1, 2)).transpose(1, 2)
        else:
            out = torch.bmm(rows, weight.transpose(1, 2))
        if self.bias is not None:
            out.add_(self.bias.view(v).unsqueeze(1))
        return out if plain else out.unflatten(1, x.shape[1:-1]), rows

    def backward(self, v: Models, kept: Any, gy: Tensor, into: Into, first: bool) -> Tensor | None:
        assert self.weight is not None
        plain = gy.dim() == 3
        slopes = gy if plain else gy.flatten(1, -2)
        # by the input first: the weights may be changed in what follows
        gx = None if first else torch.bmm(slopes, self.weight.view(v))
        target, turned = into.of(self.weight), slopes.transpose(1, 2)
        few, single = self.weight.size <= FEW, kept.shape[1] == 1
        if into.add and not few:
            target.baddbmm_(turned, kept)
        elif into.add:
            target.addcmul_(turned, kept) if single else target.add_(torch.bmm(turned, kept))
        elif few and single:
            torch.mul(turned, kept, out=target)
        else:
            torch.bmm(turned, kept, out=target)
        if self.bias is not None:
            into.put(slopes.sum(1), self.bias)
        return gx if plain or gx is None else gx.unflatten(1, gy.shape[1:-1])


class Activation(Layer):
    """An element-wise function whose derivative follows from its output, or from its input."""

    def __init__(
        self, forward: Callable[[Tensor], Tensor], slope: Callable[[Tensor, Tensor], Tensor],
        bend: Callable[[Tensor, Tensor], Tensor] | None = None, by_input: bool = False,
    ) -> None:  # fmt: skip
        """`slope(gy, z)` is the derivative times gy, with the output z (or, `by_input`, the
        input); `bend(z, dz)` is its change when z changes by dz (None: it does not change)."""
        self._forward, self.slope, self.bend, self.by_input = forward, slope, bend, by_input

    def forward(self, v: Models, x: Tensor) -> tuple[Tensor, Any]:
        out = self._forward(x)
        return out, x if self.by_input else out

    def backward(self, v: Models, kept: Any, gy: Tensor, into: Into, first: bool) -> Tensor | None:
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

    def beside(self, slot: Slot | None, v: Models, x: Tensor) -> Tensor | None:
        """A parameter of every row, with as many dimensions as the examples x."""
        if slot is None:
            return None
        return slot.view(v).view(len(v), *[1] * (x.dim() - 1 - len(self.shape)), *self.shape)

    def over_examples(self, x: Tensor) -> Tensor:
        """Sums over all but rows and what is normed."""
        return x.flatten(1, -1 - len(self.shape)).sum(1)

    def forward(self, v: Models, x: Tensor) -> tuple[Tensor, Any]:
        z, mean, scale = aten.native_layer_norm(x, self.shape, None, None, self.eps)
        weight, bias = self.beside(self.weight, v, x), self.beside(self.bias, v, x)
        out = z if weight is None else z * weight
        return out if bias is None else out + bias, (x, z, mean, scale)

    def backward(self, v: Models, kept: Any, gy: Tensor, into: Into, first: bool) -> Tensor | None:
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

    def forward(self, v: Models, x: Tensor) -> tuple[Tensor, Any]:
        return x.flatten(2), x.shape

    def backward(self, v: Models, kept: Any, gy: Tensor, into: Into, first: bool) -> Tensor | None:
        return gy.reshape(kept)


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
    nn.Tanh: lambda m, s: Activation(torch.tanh, aten.tanh_backward, lambda y, dy: -2 * y * dy),
    nn.Sigmoid: lambda m, s: Activation(
        torch.sigmoid, aten.sigmoid_backward, lambda y, dy: (1 - 2 * y) * dy
    ),
    nn.GELU: _gelu,
    nn.SiLU: lambda m, s: Activation(F.silu, aten.silu_backward, _silu_bend, by_input=True),
    nn.LayerNorm: LayerNorm,
}
