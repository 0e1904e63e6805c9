"""Pre-activation ResNet-18, of any width."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError

Shape = tuple[int, ...]
Norm = Callable[[int], nn.Module]


def batch_norm(channels: int) -> nn.Module:
    """Static batch norm: statistics of the batch alone, so there are none to average."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


def group_norm(channels: int) -> nn.Module:
    """Statistics of each example alone, over four groups of channels."""
    return nn.GroupNorm(4 if channels % 4 == 0 else 1, channels)


class Block(nn.Module):
    """x -> shortcut(x) + conv(relu(norm(conv(relu(norm(x))))))."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(before), norm(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or before != after:
            self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = torch.relu(self.norm1(x))
        short = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.conv2(torch.relu(self.norm2(self.conv1(active))))
        return out + short


def _resnet18(shape: Shape, outputs: int, width: int, stride: int, norm: Norm) -> nn.Module:
    least = 8 * stride
    if len(shape) != 3 or min(shape[1:]) < least:
        raise FedkinError(
            f"a resnet{'' if stride == 1 else f' of first stride {stride}'} needs images "
            f"[channels, height, width] of at least {least}x{least} pixels, "
            f"not inputs of shape {shape}"
        )
    layers: list[nn.Module] = [nn.Conv2d(shape[0], width, 3, stride, padding=1, bias=False)]
    channels = width
    for stage in range(4):
        after = width * 2**stage
        for step in (1 if stage == 0 else 2, 1):
            layers.append(Block(channels, after, step, norm))
            channels = after
    layers += [norm(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(channels, outputs))
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return model


def resnet18(shape: Shape, outputs: int, width: int = 64, stride: int = 1) -> nn.Module:
    """Pre-activation ResNet-18 with static batch norm; stages of 1, 2, 4 and 8 times the width.

    A first layer of stride 2 leaves a quarter of the work.
    """
    return _resnet18(shape, outputs, width, stride, batch_norm)


def resnet18_group_norm(shape: Shape, outputs: int, width: int = 64, stride: int = 1) -> nn.Module:
    """The same with group norm, which treats every example alone."""
    return _resnet18(shape, outputs, width, stride, group_norm)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18,
    "resnet18-gn": resnet18_group_norm,
}
