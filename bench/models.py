"""Models as people have them: a FedAvg round against the bare loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.timing import Row, interleaved
from bench.workloads import Workload, chosen
from fedkin.data.clients import ClientData, Examples
from fedkin.models import build

WORDS = 200
ROUNDS = 5


class Pooled(nn.Module):
    """A sequence through a part, then a linear layer on the mean or the last of its outputs."""

    def __init__(self, part: nn.Module, width: int, last: bool = False) -> None:
        super().__init__()
        self.part, self.last, self.head = part, last, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.part(x)
        out = out[0] if isinstance(out, tuple) else out
        out = out[:, -1] if self.last else out.mean(1)
        outputs: Tensor = self.head(out)
        return outputs


class Residual(nn.Module):
    """x + two convolutions of x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = torch.relu(x + self.b(torch.relu(self.a(x))))
        return outputs


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return Pooled(nn.TransformerEncoder(layer, 2), 64)


def lstm() -> nn.Module:
    return Pooled(nn.LSTM(16, 64, batch_first=True), 64, last=True)


def residual_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), Residual(16), nn.MaxPool2d(2),
        Residual(16), nn.Flatten(), nn.Linear(16 * 49, 10),
    )  # fmt: skip


def tabular() -> nn.Module:
    layers: list[nn.Module] = []
    for before in (30, 64):
        layers += [nn.Linear(before, 64), nn.LayerNorm(64), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def text_classifier() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1)
    return Pooled(nn.Sequential(nn.Embedding(WORDS, 32), encoder), 32)


@dataclass(frozen=True)
class Words(Workload):
    """The same on sequences of words, which are whole numbers."""

    def data(self) -> ClientData:
        plain = super().data()
        words = torch.randint(0, WORDS, plain.train.x.shape)
        examples = Examples(words, plain.train.y, plain.train.offsets)
        return ClientData(examples, examples, 10)


MODELS = (
    Workload("tabular", tabular, (30,), 30, 100, 10, 1.0),
    Workload("lstm", lstm, (20, 16), 20, 60, 5, 1.0),
    Workload("transformer", transformer, (16, 64), 20, 60, 5, 1.0),
    Words("text", text_classifier, (16,), 20, 60, 5, 1.0),
    Workload("residual-cnn", residual_cnn, (1, 28, 28), 8, 40, 3, 1.0),
    Workload("resnet18-gn", lambda: build("resnet18-gn", (3, 32, 32), 10), (3, 32, 32), 2, 20, 1,
             1.0),
    Workload("resnet18-bn", lambda: build("resnet18", (3, 32, 32), 10), (3, 32, 32), 2, 20, 1,
             1.0),
)  # fmt: skip


def models(only: str | None = None) -> Iterator[Row]:
    """Transformer, LSTM, ResNet and others: a FedAvg round against the bare loop."""
    for work in chosen(MODELS, only):
        ours = work.ours()
        measured = interleaved(ours, work.bare(), ROUNDS)
        strategy = str(ours.fed.engine.chosen)  # type: ignore[attr-defined]
        yield {"model": work.name, **measured, "target": work.target, "strategy": strategy}
