"""Modules of the kinds that people train, each small."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples

CLASSES, LENGTH, WIDTH, WORDS = 3, 4, 8, 11


class Then(nn.Module):
    """A part whose outputs (the first, where there are more) go on to a head."""

    def __init__(self, part: nn.Module, last: bool = False, copies: int = 1) -> None:
        super().__init__()
        self.part, self.last, self.copies = part, last, copies
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = self.part(*[x] * self.copies)
        out = out[0] if isinstance(out, tuple) else out
        return self.head(out[:, -1] if self.last else out.mean(1))


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.dropout(torch.relu(self.a(x.mean(1))), 0.3, self.training))


class Threefold(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class SequenceFirst(nn.Module):
    """What wants the sequence before the batch, as attention with default arguments does."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x.transpose(0, 1)).mean(0))


class WithBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.0]))
        self.a = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x.mean(1) * self.scale)


class Tied(nn.Module):
    """An embedding whose weights are also the output layer's, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x).mean(1))


class Together(nn.Module):
    """Words through an embedding, dropout, an LSTM and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Dropout(0.2))
        self.lstm, self.norm = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.lstm(self.words(x))[0][:, -1]))


class Basic(nn.Module):
    """The basic block of a ResNet (He et al., 2016), with torchvision's names."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1 or before != after:
            shortcut = nn.Conv2d(before, after, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet18(nn.Module):
    """ResNet-18 as in torchvision: its layers, names, order and changes in place."""

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        before = width
        for stage, after in enumerate((width, 2 * width, 4 * width, 8 * width), 1):
            blocks = Basic(before, after, 1 if stage == 1 else 2), Basic(after, after, 1)
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
            before = after
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(LENGTH * WIDTH, WIDTH), *layers, nn.Linear(WIDTH, CLASSES)
    )


def frozen_backbone() -> nn.Module:
    """A frozen backbone with batch norm that has seen other data, and a head that learns."""
    module = flat(nn.BatchNorm1d(WIDTH), nn.ReLU())
    module.train()(torch.randn(50, LENGTH, WIDTH))
    for part in list(module)[:-1]:
        part.requires_grad_(False)
    return module


def images(*layers: nn.Module) -> nn.Module:
    """The inputs as an image of one channel."""
    return nn.Sequential(
        nn.Unflatten(1, (1, LENGTH)),
        nn.Conv2d(1, 8, 3, padding=1),
        *layers,
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


ZOO: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: flat(nn.ReLU(), nn.Dropout(0.3)),
    "alpha-dropout": lambda: flat(nn.SELU(), nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2)),
    "dropout2d": lambda: images(nn.Dropout2d(0.4)),
    "functional-dropout": FunctionalDropout,
    "batch-norm-1d": lambda: flat(nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.2)),
    "batch-norm-2d": lambda: images(nn.BatchNorm2d(8)),
    "layer-norm": lambda: flat(nn.LayerNorm(WIDTH), nn.GELU()),
    "group-norm": lambda: images(nn.GroupNorm(2, 8)),
    "instance-norm": lambda: images(nn.InstanceNorm2d(8, affine=True, track_running_stats=True)),
    "lstm": lambda: Then(nn.LSTM(WIDTH, WIDTH, 2, dropout=0.3, batch_first=True), last=True),
    "gru": lambda: Then(nn.GRU(WIDTH, WIDTH, batch_first=True), last=True),
    "attention": lambda: Then(
        nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=True), copies=3
    ),
    "attention-by-default": lambda: SequenceFirst(Threefold(nn.MultiheadAttention(WIDTH, 2))),
    "transformer": lambda: SequenceFirst(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16), 2)
    ),
    "embedding": lambda: nn.Sequential(
        nn.Embedding(WORDS, WIDTH),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(LENGTH * WIDTH, CLASSES),
    ),
    "together": Together,
    "buffer": WithBuffer,
    "tied": Tied,
    "frozen": frozen_backbone,
    "weight-norm": lambda: nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(32, CLASSES))),
    "old-weight-norm": lambda: nn.Sequential(
        nn.Flatten(), nn.utils.weight_norm(nn.Linear(LENGTH * WIDTH, CLASSES))
    ),
    "plain-norms": lambda: images(
        nn.BatchNorm2d(8, affine=False, momentum=None), nn.InstanceNorm2d(8), nn.Dropout3d(0.2)
    ),
}
TOKENS = ("embedding", "tied", "together")


def zoo_data(name: str, clients: int = 4) -> ClientData:
    """A few examples of different number at every client: sequences of vectors, or of words."""
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, LENGTH, WIDTH, generator=g)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, CLASSES, (count,), generator=g)
        if name in TOKENS:
            return (y[:, None] + torch.randint(0, 3, (count, LENGTH), generator=g)), y
        return centres[y] + 0.5 * torch.randn(count, LENGTH, WIDTH, generator=g), y

    train = Examples.of([draw(9 + 4 * i) for i in range(clients)])
    return ClientData(train, Examples.of([draw(12) for _ in range(clients)]), CLASSES)


def zoo_problem(name: str, **options: object) -> Problem:
    torch.manual_seed(1)
    settings = {"batch_size": 4, "dtype": torch.float64} | options
    return Problem(ZOO[name](), zoo_data(name), **settings)  # type: ignore[arg-type]
