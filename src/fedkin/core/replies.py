"""What came back from clients: rows with the missing ones marked, or their means."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Replies(dict[str, Tensor]):
    """Stacked answers, one row per client in the order asked; missing rows are zero.

    `arrived` marks the rows that came back whole. When nobody was reached at all, not
    even the shape of an answer is known: every name then reads as a column of zeros.
    """

    def __init__(self, at: Tensor, arrived: Tensor, rows: Mapping[str, Tensor]) -> None:
        super().__init__(rows)
        self.at, self.arrived = at, arrived

    def __missing__(self, name: str) -> Tensor:
        if self:
            raise KeyError(f"the step's answer has no '{name}'; it has {sorted(self)}")
        return torch.zeros(len(self.at), 1)

    def mean(self, name: str, weights: Tensor | None = None) -> Tensor:
        """Mean over the rows that arrived (zero when none did), one weight per row where given."""
        rows = self[name]
        w = self.arrived.to(rows.device, rows.dtype)
        w = w if weights is None else w * weights.to(rows)
        total = w.sum()
        return torch.tensordot(w / total, rows, 1) if total > 0 else rows.new_zeros(rows.shape[1:])

    def fill(self, name: str, old: Tensor) -> Tensor:
        """The rows that arrived, and `old` rows for those that did not."""
        if not self:
            return old
        rows = self[name]
        if bool(self.arrived.all()):
            return rows
        mask = self.arrived.to(rows.device).view(-1, *[1] * (rows.dim() - 1))
        return torch.where(mask, rows, old)


class Means(dict[str, Tensor]):
    """Means of answers by name; zero, whatever its shape, when nobody answered.

    `answered` tells how many clients did (of a private mean: how many were expected to),
    `weight` what they count together. With `use_up` the sums' memory becomes that of the means.
    """

    def __init__(
        self, sums: Mapping[str, Tensor], total: float, answered: float, use_up: bool = False
    ) -> None:
        count = total or 1.0
        super().__init__(
            (name, v.div_(count) if use_up and v.is_floating_point() else v / count)
            for name, v in sums.items()
        )
        self.answered, self.weight = answered, total

    def __missing__(self, name: str) -> Tensor:
        if self:
            raise KeyError(f"the step's answer has no '{name}'; it has {sorted(self)}")
        return torch.zeros(())


def finite_rows(tensors: list[Tensor], count: int) -> Tensor:
    """Which rows hold only finite numbers, as a bool vector on the CPU."""
    good = torch.ones(count, dtype=torch.bool)
    for tensor in tensors:
        if tensor.is_floating_point():
            good &= torch.isfinite(tensor.flatten(1).sum(1)).cpu()
    return good
