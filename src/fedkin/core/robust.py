"""Means that one broken or hostile client cannot carry away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from fedkin.core.guard import Guard
from fedkin.errors import FedkinError, unknown

KINDS = ("mean", "median", "trimmed", "norm-bound")


@dataclass(frozen=True)
class Aggregate:
    """How clients' answers become one: their mean, or something that resists some of them.

    median: of every number by itself. trimmed: for every number the mean without this share of
    the smallest and this share of the largest. norm-bound: the mean of answers no longer than
    this, longer ones shortened to it.
    """

    kind: str
    amount: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Aggregate | None:
        """`median`, `trimmed:0.1` or `norm-bound:2.5`; None for the plain `mean`."""
        kind, _, amount = text.partition(":")
        if kind not in KINDS:
            raise unknown("aggregate", kind, KINDS)
        if kind in ("mean", "median"):
            if amount:
                raise FedkinError(f"aggregate = '{text}': {kind} takes no number")
            return None if kind == "mean" else cls(kind)
        try:
            number = float(amount)
        except ValueError:
            number = 0.0
        top, usual = (0.5, "0.1") if kind == "trimmed" else (float("inf"), "1")
        if not 0 < number < top:
            limits = "above 0 and below 0.5" if kind == "trimmed" else "above 0"
            raise FedkinError(
                f"aggregate = '{text}': {kind} needs a number {limits}, as in {kind}:{usual}"
            )
        return cls(kind, number)

    @property
    def needs_rows(self) -> bool:
        """Whether all answers must be in memory together."""
        return self.kind != "norm-bound"

    @property
    def no_weights(self) -> str:
        """Why weights do not go with it, where they do not."""
        return (
            f"aggregate = {self.kind} counts every client once: leave weighted out, or choose "
            "norm-bound"
        )

    def of(self, rows: Tensor) -> Tensor:
        """The median or trimmed mean of rows [m, ...]."""
        ordered, count = rows.sort(0).values, len(rows)
        if self.kind == "median":
            return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
        cut = min(ceil(self.amount * count), (count - 1) // 2)
        return ordered[cut : count - cut].mean(0)

    def shortened(self, reply: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Answers with all tensors as one vector no longer than allowed; here, at the server,
        since a hostile client would not do it itself."""
        tame = {name: v.nan_to_num() for name, v in reply.items()}  # NaN is left out elsewhere
        return Guard((("", self.amount),)).clipped(tame)


def of_all(rows: Mapping[str, Tensor], good: Tensor, how: Aggregate) -> dict[str, Tensor]:
    """Every tensor's robust mean over the rows that are good."""
    if not bool(good.any()):
        return {}
    return {name: how.of(v[good.to(v.device)].to(torch.promote_types(v.dtype, torch.float32)))
            for name, v in rows.items()}  # fmt: skip
