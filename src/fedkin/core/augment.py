"""Data augmentation: training examples changed at random, by numbers of each client's own key.

The numbers of an example follow from the client's key, the minibatch and the example's place in
it, so that augmented runs are the same in any engine and block size, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedkin.core import rng
from fedkin.errors import FedkinError, unknown

Numbers = NDArray[np.float64]
# a user's function of examples [n, ...] and uniform numbers [n, OWN_NUMBERS]
OwnChange = Callable[[Tensor, Tensor], Tensor]
OWN_NUMBERS = 16
KINDS = ("flip", "crop")


@dataclass(frozen=True)
class Change:
    """One way to change examples x [B, n, ...] by numbers u [B, n, count] in [0, 1)."""

    name: str
    count: int
    apply: Callable[[Tensor, Numbers], Tensor]


class Augment:
    """Changes one after the other: `flip`, `crop:4`, or functions of users."""

    def __init__(self, kinds: Sequence[str | OwnChange]) -> None:
        self.kinds = tuple(kinds)
        self.changes = [_change(kind) for kind in kinds]
        self.count = sum(change.count for change in self.changes)
        self.name = ",".join(change.name for change in self.changes)

    def __call__(self, x: Tensor, keys: rng.Bits, batch: NDArray[np.int64], size: int) -> Tensor:
        """Examples [B, n, ...] changed; `batch` numbers each row's minibatch of up to `size`."""
        start = batch.astype(np.uint64) * np.uint64(size * self.count)
        lanes = start[:, None] + rng.positions(0, x.shape[1] * self.count)
        u = rng.uniform(rng.bits_of_rows(keys, lanes)).reshape(*x.shape[:2], self.count)
        first = 0
        for change in self.changes:
            x = change.apply(x, u[..., first : first + change.count])
            first += change.count
        return x

    def check(self, x: Tensor) -> None:
        """Refuse at the door what does not fit the examples x [n, ...]."""
        for change in self.changes:
            if change.name.partition(":")[0] in KINDS and x.dim() != 4:
                raise FedkinError(
                    f"augment '{change.name}' is for images [channels, height, width], not for "
                    f"inputs of shape {tuple(x.shape[1:])}"
                )
        keys, first = rng.key("door", np.arange(1)), np.zeros(1, np.int64)
        try:
            one, other = (self(x[None].clone(), keys, first, len(x))[0] for _ in range(2))
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise FedkinError(
                f"augment '{self.name}' fails: {type(error).__name__}: {reason}"
            ) from None
        if not isinstance(one, Tensor) or one.shape != x.shape or one.dtype != x.dtype:
            raise FedkinError(
                f"augment '{self.name}' must give examples of the same shape and type, "
                f"{tuple(x.shape)}"
            )
        if not torch.equal(one, other):
            raise FedkinError(
                f"augment '{self.name}' gives two different results for the same examples and "
                "numbers: let all its randomness come from the numbers it is given"
            )


def _change(kind: str | OwnChange) -> Change:
    if callable(kind):
        return Change(getattr(kind, "__name__", "own"), OWN_NUMBERS, _own(kind))
    name, _, amount = kind.strip().partition(":")
    if name not in KINDS:
        raise unknown("augment", name, KINDS)
    if name == "flip":
        if amount:
            raise FedkinError(f"augment '{kind}': flip takes no number")
        return Change("flip", 1, _flip)
    if not (amount.isascii() and amount.isdigit() and 0 < int(amount) <= 10**4):
        raise FedkinError(f"augment '{kind}': say how many pixels to pad with, as in crop:4")
    return Change(f"crop:{int(amount)}", 2, _crop(int(amount)))


def _flip(x: Tensor, u: Numbers) -> Tensor:
    """Left and right exchanged, with chance 1/2."""
    chosen = torch.from_numpy(u[..., 0] < 0.5).to(x.device)[..., None, None, None]
    return torch.where(chosen, x.flip(-1), x)


def _crop(padding: int) -> Callable[[Tensor, Numbers], Tensor]:
    """The image padded with zeros on all sides, and cut to its size again at a random place."""

    def apply(x: Tensor, u: Numbers) -> Tensor:
        height, width = x.shape[-2:]
        x = F.pad(x, [padding] * 4)
        down, right = torch.from_numpy((u * (2 * padding + 1)).astype(np.int64)).unbind(-1)
        rows = (down[..., None] + torch.arange(height))[:, :, None, :, None].to(x.device)
        columns = (right[..., None] + torch.arange(width))[:, :, None, None, :].to(x.device)
        return x.take_along_dim(rows, 3).take_along_dim(columns, 4)

    return apply


def _own(function: OwnChange) -> Callable[[Tensor, Numbers], Tensor]:
    def apply(x: Tensor, u: Numbers) -> Tensor:
        numbers = torch.from_numpy(u).flatten(0, 1).to(x.device, torch.float32)
        return function(x.flatten(0, 1), numbers).view_as(x)

    return apply
