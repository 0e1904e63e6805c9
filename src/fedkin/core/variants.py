"""Altered forms of a problem on the same clients' data: smaller models, masked losses."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.core import rng
from fedkin.core.losses import Loss
from fedkin.core.memory import Memory
from fedkin.errors import FedkinError
from fedkin.models.layout import Layout


@dataclass(frozen=True)
class Part:
    """One part (train, validation, test) of all clients' data, ready to be indexed."""

    x: Tensor
    y: Tensor
    starts: Tensor
    sizes: Tensor


# whether a loss is of a client's own classes, and how it is kept to them
OwnClasses = bool | Literal["zeroed"]


@dataclass(frozen=True)
class Variant:
    """What a request's clients work on: the plain problem, unless told otherwise.

    rate: the model has ceil(rate*width) channels in every hidden layer. scaler: what layers give
    to them is multiplied by 1/rate, to make up for those that are missing in training.
    own_classes: the softmax of the loss runs over the client's own classes only, or ("zeroed")
    over all with the outputs of classes that the client lacks put to zero. held_out: a fifth of
    the client's training examples is kept from training and is its validation part. module: one
    that clients bring, by its name, in place of the problem's own.
    """

    rate: float = 1.0
    scaler: bool = False
    own_classes: OwnClasses = False
    held_out: bool = False
    module: str = ""

    @property
    def label(self) -> str:
        """Tells models apart, in the names of what clients remember; "" for the plain one."""
        if self.module:
            return f"model {self.module}"
        return "" if self.rate == 1 else f"rate{self.rate:g}"

    def facts(self) -> dict[str, Any]:
        """As json can carry it; `Variant(**facts)` is the opposite."""
        return asdict(self)


PLAIN = Variant()
HELD_OUT = Variant(held_out=True)
# of a client's training examples, the share that is held out
SHARE = 0.2


def memory_of(memory: Memory, variant: Variant) -> Memory:
    """What clients remember of models of this kind, kept apart from others."""
    return LabelledMemory(memory, variant.label) if variant.label else memory


class LabelledMemory(Memory):
    """A client's memory in which every name carries a label."""

    def __init__(self, memory: Memory, label: str) -> None:
        super().__init__(memory.num_clients)
        self._memory, self._label = memory, label

    def read(self, name: str, clients: Tensor, default: Tensor) -> Tensor:
        return self._memory.read(f"{name}-{self._label}", clients, default)

    def write(self, name: str, clients: Tensor, rows: Tensor) -> None:
        self._memory.write(f"{name}-{self._label}", clients, rows)


def own_classes_loss(loss: Loss, how: OwnClasses = True) -> Loss:
    """Cross-entropy whose targets [k, 1 + classes] tell which classes exist for an example.

    Outputs of the others count as minus infinity, or ("zeroed": HeteroFL, FedRolex) as zero.
    """
    if loss.name != "cross-entropy":
        raise FedkinError(f"own_classes needs the cross-entropy loss, not '{loss.name}'")
    if loss.weights:
        raise FedkinError("own_classes has no weights of classes: leave class_weights out")

    def value(outputs: Tensor, targets: Tensor) -> Tensor:
        present = F.pad(targets[:, 1:], (0, outputs.shape[1] + 1 - targets.shape[1]))
        absent = 0.0 if how == "zeroed" else torch.finfo(outputs.dtype).min
        masked = outputs.masked_fill(present == 0, absent)
        return F.cross_entropy(masked, targets[:, 0].long(), reduction="none")

    return Loss("cross-entropy-of-own-classes", value, classes=True)


def with_own_classes(part: Part, classes: int) -> Part:
    """Examples whose targets carry a flag for each class that their client has."""
    # runs in lockstep share examples, so a client's need not follow those of the one before it
    owners = torch.zeros(len(part.y), dtype=torch.int64, device=part.y.device)
    for client, (start, size) in enumerate(zip(part.starts, part.sizes, strict=True)):
        owners[start : start + size] = client
    has = torch.zeros(len(part.sizes), classes, dtype=part.y.dtype, device=part.y.device)
    has[owners, part.y] = 1
    return replace(part, y=torch.cat([part.y[:, None], has[owners]], 1))


def hold_out(part: Part, least: int) -> tuple[Part, Part]:
    """Training examples in two: those to train on, `least` or more, and those held out.

    Which ones depends on how many there are and on nothing else, so that every engine and every
    site holds out the same.
    """
    order, orders = torch.arange(len(part.y)), dict[int, Tensor]()
    for start, size in zip(part.starts.tolist(), part.sizes.tolist(), strict=True):
        if size not in orders:
            words = rng.bits(rng.key("held out", size), rng.positions(0, size))[0]
            orders[size] = torch.from_numpy(np.argsort(words, kind="stable"))
        order[start : start + size] = start + orders[size]
    held = (SHARE * part.sizes).round().long().clamp(min=1)
    held = torch.minimum(held, part.sizes - least).clamp(min=0)
    x, y, kept = part.x[order.to(part.x.device)], part.y[order.to(part.y.device)], part.sizes - held
    return Part(x, y, part.starts, kept), Part(x, y, part.starts + kept, held)


def classes_of_entries(module: nn.Module, layout: Layout, classes: int | None) -> Tensor:
    """Which class a model's entry serves alone, 1 the first: the rows of a last linear layer.

    0 for all other entries.
    """
    heads = [name for name, part in module.named_modules()
             if isinstance(part, nn.Linear) and part.out_features == classes]  # fmt: skip
    serves = torch.zeros(layout.size, dtype=torch.int64)
    for slot in layout.slots:
        if classes and slot.name.rpartition(".")[0] in heads[-1:]:
            rows = torch.arange(1, classes + 1).repeat_interleave(slot.size // classes)
            serves[slot.start : slot.start + slot.size] = rows
    return serves
