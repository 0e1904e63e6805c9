"""Logistic and linear regression, multi-layer perceptrons and small convolutional networks."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from torch import nn

from fedkin.errors import FedkinError

Shape = tuple[int, ...]


def linear(shape: Shape, outputs: int, *, bias: bool = True) -> nn.Module:
    """One linear layer, starting at zero: logistic regression with cross-entropy."""
    layer = nn.Linear(prod(shape), outputs, bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), layer)


def weights(shape: Shape, outputs: int) -> nn.Module:
    """A linear layer without a bias."""
    return linear(shape, outputs, bias=False)


def mlp(shape: Shape, outputs: int, *widths: int) -> nn.Module:
    """Hidden layers with ReLU; 200 and 200 units unless told otherwise."""
    layers: list[nn.Module] = [nn.Flatten()]
    size = prod(shape)
    for width in widths or (200, 200):
        layers += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, outputs))


def mlp_norm(shape: Shape, outputs: int, *widths: int) -> nn.Module:
    """As `mlp`, with a layer norm before every ReLU."""
    layers: list[nn.Module] = []
    for layer in mlp(shape, outputs, *widths).children():
        norm = [nn.LayerNorm(layers[-1].out_features)] if isinstance(layer, nn.ReLU) else []
        layers += [*norm, layer]
    return nn.Sequential(*layers)


def cnn_norm(
    shape: Shape, outputs: int, first: int = 32, second: int = 64, *dense: int
) -> nn.Module:
    """As `cnn`, with a group norm (of one group) after every convolution."""
    layers: list[nn.Module] = []
    for layer in cnn(shape, outputs, first, second, *dense).children():
        norm = [nn.GroupNorm(1, layer.out_channels)] if isinstance(layer, nn.Conv2d) else []
        layers += [layer, *norm]
    return nn.Sequential(*layers)


def cnn(shape: Shape, outputs: int, first: int = 32, second: int = 64, *dense: int) -> nn.Module:
    """Two convolutions with ReLU and pooling, then dense layers (512 unless told otherwise).

    Kernels are 5x5, or 3x3 for images smaller than 20 pixels.
    """
    kernel = 5 if min(shape[1:], default=0) >= 20 else 3
    return _cnn(shape, outputs, kernel, first, second, *dense)


def cnn3(shape: Shape, outputs: int, first: int = 32, second: int = 64, *dense: int) -> nn.Module:
    """As `cnn`, with 3x3 kernels for images of any size."""
    return _cnn(shape, outputs, 3, first, second, *dense)


def _cnn(
    shape: Shape, outputs: int, kernel: int, first: int, second: int, *dense: int
) -> nn.Module:
    if len(shape) != 3:
        raise FedkinError(
            f"a cnn needs images [channels, height, width], not inputs of shape {shape}"
        )
    channels, height, width = shape
    if min(height, width) < 8:
        raise FedkinError(f"a cnn needs images of at least 8x8 pixels, not {height}x{width}")
    padding = 0 if kernel == 5 else 1

    def shrink(pixels: int) -> int:
        for _ in range(2):
            pixels = (pixels - kernel + 1 + 2 * padding) // 2
        return pixels

    layers: list[nn.Module] = [
        nn.Conv2d(channels, first, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
    ]  # fmt: skip
    size = second * shrink(height) * shrink(width)
    for units in dense or (512,):
        layers += [nn.Linear(size, units), nn.ReLU()]
        size = units
    return nn.Sequential(*layers, nn.Linear(size, outputs))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "logistic": linear,
    "linear-no-bias": weights,
    "mlp": mlp,
    "cnn": cnn,
    "cnn3": cnn3,
    "mlp-norm": mlp_norm,
    "cnn-norm": cnn_norm,
}
