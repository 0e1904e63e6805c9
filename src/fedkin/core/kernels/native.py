"""Chains of common layers with gradients written out: forward and backward without autograd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from fedkin.core import rng
from fedkin.core.kernels.layer import Into, Layer, UnsupportedLayerError
from fedkin.core.kernels.layers import LAYERS
from fedkin.core.kernels.spec import ModelSpec, weights
from fedkin.models.layout import Models, Parted, empty_rows


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
            if type(module) not in LAYERS:
                raise UnsupportedLayerError(type(module).__name__)
            own = {
                slot.name.removeprefix(prefix): slot
                for slot in spec.layout.slots
                if slot.name.startswith(prefix)
            }
            self.layers.append(LAYERS[type(module)](module, own))
        # what lies before the first layer with parameters needs no gradients
        self.first = [layer.learns for layer in self.layers].index(True)

    def _parted(self, v: Tensor) -> Parted:
        return Parted(v, self.spec.layout)

    def outputs(self, v: Tensor, x: Tensor, statistics: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x, _ = layer.forward(v, x)
        return x.contiguous()

    def _backward(
        self, v: Models, x: Tensor, y: Tensor, w: Tensor | None, into: Into, factor: Any = 1.0
    ) -> Tensor:
        """Puts `factor` times the gradient at v where `into` says; gives the outputs."""
        kept = []
        for layer in self.layers:
            x, keep = layer.forward(v, x)
            kept.append(keep)
        outputs, slope = x, self.spec.loss.derivatives(x, y)
        if w is not None:
            factor = factor * w
        elif x.shape[1] > 1:
            factor = factor / x.shape[1]
        if isinstance(factor, Tensor):
            factor = factor.reshape(*factor.shape, *[1] * (x.dim() - 2))
        if isinstance(factor, Tensor) or factor != 1:
            slope = slope * factor
        found: Tensor | None = slope
        for i in reversed(range(self.first, len(self.layers))):
            assert found is not None
            found = self.layers[i].backward(v, kept[i], found, into, first=i == self.first)
        return outputs

    def grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> Tensor:
        g = empty_rows(len(v), v)
        self._backward(self._parted(v), x, y, w, Into(self._parted(g)))
        return g

    def descend_(
        self, v: Tensor, lr: Any, x: Tensor, y: Tensor, w: Tensor | None, into: Tensor
    ) -> Tensor:
        """into <- into - lr*gradient at v, for a number or a column lr; into may be v: no pass over
        gradients, which are never written down."""
        models = self._parted(v)
        place = Into(models if into is v else self._parted(into), True)
        self._backward(models, x, y, w, place, factor=-lr)
        return into

    def value_and_grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> tuple[Tensor, Tensor]:
        g = empty_rows(len(v), v)
        place = Into(self._parted(g))
        outputs = self._backward(self._parted(v), x, y, w, place)
        values = self.spec.loss.value(outputs.flatten(0, 1), y.flatten(0, 1))
        losses = values.view(y.shape[:2])
        return (losses * weights(w, losses)).sum(1, keepdim=True), g
