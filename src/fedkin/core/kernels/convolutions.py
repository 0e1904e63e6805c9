"""Convolutions and pooling with gradients written out, row by row in channels-last order:
there is no batched form that is fast on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.core.kernels.layer import Into, Layer, UnsupportedLayerError, aten
from fedkin.core.kernels.spec import CHANNELS
from fedkin.models.layout import Models, Slot


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

    def forward(self, v: Models, x: Tensor) -> tuple[Tensor, Any]:
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

    def backward(self, v: Models, kept: Any, gy: Tensor, into: Into, first: bool) -> Tensor | None:
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

    def forward(self, v: Models, x: Tensor) -> tuple[Tensor, Any]:
        images = x.flatten(0, 1)
        out, chosen = aten.max_pool2d_with_indices(images, *self.options)
        return out.unflatten(0, x.shape[:2]), (images, chosen)

    def backward(self, v: Models, kept: Any, gy: Tensor, into: Into, first: bool) -> Tensor | None:
        images, chosen = kept
        slopes = gy.flatten(0, 1)
        if images.is_contiguous(memory_format=torch.channels_last):
            slopes = slopes.contiguous(memory_format=torch.channels_last)
        gx = aten.max_pool2d_with_indices_backward(slopes, images, *self.options, chosen)
        by_row: Tensor = gx.unflatten(0, gy.shape[:2])
        return by_row


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
