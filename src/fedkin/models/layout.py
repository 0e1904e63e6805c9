"""Where each parameter of a module lies in the flat vector that the mathematics works on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError


@dataclass(frozen=True)
class Slot:
    """One parameter: its name, its shape and where it starts."""

    name: str
    shape: tuple[int, ...]
    start: int

    @cached_property
    def size(self) -> int:
        return prod(self.shape)

    def view(self, rows: Tensor | Parted) -> Tensor:
        """This parameter in every row of [B, d]: [B, *shape], sharing memory."""
        if isinstance(rows, Parted):
            return rows.parts[self.start]
        return rows.narrow(1, self.start, self.size).view(rows.shape[0], *self.shape)


@dataclass(frozen=True)
class Layout:
    """Trainable parameters of a module (and buffers, where a model is kept), in order."""

    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        slots, start = [], 0
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                slots.append(Slot(name, tuple(parameter.shape), start))
                start += parameter.numel()
        if not slots:
            frozen = any(True for _ in module.parameters())
            raise FedkinError(
                "the model has no trainable parameters"
                + (": all are frozen; set requires_grad of some" if frozen else "")
            )
        return cls(tuple(slots))

    @cached_property
    def sizes(self) -> list[int]:
        """How many numbers each parameter has."""
        return [slot.size for slot in self.slots]

    @cached_property
    def size(self) -> int:
        last = self.slots[-1:]
        return last[0].start + last[0].size if last else 0

    def followed_by(self, other: Layout) -> Layout:
        """The slots of both, one after the other."""
        if not other.slots:
            return self
        later = (replace(slot, start=slot.start + self.size) for slot in other.slots)
        return Layout((*self.slots, *later))

    def parted(self, names: Collection[str]) -> tuple[Layout, Layout]:
        """The slots that are not among these names, and those that are; each from 0."""
        parts: tuple[list[Slot], list[Slot]] = ([], [])
        for slot in self.slots:
            part = parts[slot.name in names]
            part.append(replace(slot, start=sum(other.size for other in part)))
        return Layout(tuple(parts[0])), Layout(tuple(parts[1]))

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """[B, d] as named parameters [B, *shape], without copying."""
        return {slot.name: slot.view(rows) for slot in self.slots}

    def join(self, named: Mapping[str, Tensor]) -> Tensor:
        """Named parameters [B, *shape] as rows [B, d]."""
        return torch.cat([named[slot.name].flatten(1) for slot in self.slots], 1)

    def flatten(self, module: nn.Module) -> Tensor:
        """A module's parameters as one vector [d]."""
        named = dict(module.named_parameters())
        values = [named[slot.name].detach().reshape(-1) for slot in self.slots]
        return torch.cat(values) if values else torch.empty(0)

    def fill(self, module: nn.Module, vector: Tensor) -> nn.Module:
        """Write a vector [d] into a module's parameters; gives the module back."""
        named = {**dict(module.named_buffers()), **dict(module.named_parameters())}
        with torch.no_grad():
            for slot in self.slots:
                named[slot.name].copy_(slot.view(vector[None])[0])
        return module


# numbers from which rows begin at cache lines of their own: matrix products into rows that begin
# anywhere take a quarter longer (shorter rows are better side by side)
LONG, LINE = 1 << 14, 64


def empty_rows(count: int, like: Tensor) -> Tensor:
    """Room for so many models as long as the rows of `like`."""
    size, line = like.shape[-1], LINE // like.element_size()
    width = -(-size // line) * line if size >= LONG else size
    return torch.empty(count, width, dtype=like.dtype, device=like.device)[:, :size]


class Parted:
    """Rows of models [B, d] in which each parameter was looked up once."""

    def __init__(self, rows: Tensor, layout: Layout) -> None:
        self.rows, count = rows, rows.shape[0]
        pieces = zip(layout.slots, rows.split_with_sizes(layout.sizes, 1), strict=True)
        self.parts = {slot.start: piece.view(count, *slot.shape) for slot, piece in pieces}

    def __len__(self) -> int:
        return self.rows.shape[0]


Models = Tensor | Parted
