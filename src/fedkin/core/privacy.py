"""Differential privacy at the server's end of the door: noise on sums, and what was released.

Every client's row of a `mean` is clipped where it is computed (`Guard`), so that one client
changes the sum by no more than the limit; noise is added to the sum, and the sum is divided by
the number of clients expected, which no client's data can change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import exp, prod, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core import gaussian
from fedkin.core.guard import BELOW, Guard
from fedkin.core.replies import Means
from fedkin.errors import FedkinError

# of the limit's steps when it follows a quantile, and the most that asking for it may cost: this
# share of the noise's 1/z^2 (Andrew et al., 2021)
QUANTILE_LR, QUANTILE_SHARE = 0.2, 0.05
UNBOUNDED = (
    "a weighted mean lets a client count by its samples without a limit: give dp_most_samples, "
    "from which on a client counts no more, or leave weighted out"
)
# makes random numbers for a purpose
Source = Callable[[str], np.random.Generator]


@dataclass
class Privacy:
    """How a run's sums are made private, and how many it has released.

    limits: what rows are clipped to (see `Guard`). noise: z, the standard deviation of the noise
    in units of what one client can change. clients: how many are expected in a round. cohort: as
    how many of them the noise is to be scaled (None: as many as there are). quantile: the share of
    rows that need no clipping, which limits then follow. most: sums and single rows that the
    method releases in a round at most. weight_cap: the weight from which on a client counts no
    more. secret: noise from the system's cryptographic generator. method: its name, for errors.
    """

    limits: Mapping[str, float]
    noise: float
    clients: float
    cohort: float | None = None
    quantile: float | None = None
    most: tuple[int, int] = (1, 0)
    weight_cap: float | None = None
    secret: bool = False
    method: str = ""
    # what was released in this round: sums, single rows; and in rounds before, by kind
    now: list[int] = field(default_factory=lambda: [0, 0])
    rounds: Counter[tuple[int, int]] = field(default_factory=Counter)
    factors: dict[str, float] = field(default_factory=dict)
    shares: int | None = None  # clients whose part of the noise is in every sum, if they add it

    # requests --------------------------------------------------------------------------

    def guard_sum(self, step: str, shares: int | None) -> Guard:
        """The guard of rows that are added up.

        With `shares` at least so many clients of every sum add their part of the noise
        themselves, and nobody adds any to the sum.
        """
        self._count(0, "sums")
        self.shares = shares
        noise, below = self._split()
        part = 0.0 if shares is None else self.scale / sqrt(shares)
        told = None if below is None else below * part
        return Guard(self._limits(step), noise * part, False, told, self.secret)

    def guard_row(self, step: str) -> Guard:
        """The guard of a row that reaches the server by itself: where none may, of an empty one."""
        if not self.most[1]:
            return Guard(())
        self._count(1, "single answers")
        return Guard(self._limits(step), self.noise, True, None, self.secret)

    def weights(self, given: Tensor | None, share: float) -> tuple[Tensor | None, float]:
        """Weights of at most 1, and what the clients of a round are expected to weigh."""
        if given is None:
            return None, self.clients
        if self.weight_cap is None:
            raise FedkinError(UNBOUNDED)
        w = (given.double() / self.weight_cap).clamp(0, 1)
        return w, share * float(w.sum())

    def _count(self, which: int, what: str) -> None:
        self.now[which] += 1
        if self.now[which] > self.most[which]:
            raise FedkinError(
                f"method '{self.method}' releases more than {self.most[which]} {what} in a round, "
                "which is what its class declares (`releases`) and what is accounted for"
            )

    def _limits(self, step: str) -> tuple[tuple[str, float], ...]:
        factor = self.factors.get(step, 1.0)
        return tuple((name, factor * limit) for name, limit in self.limits.items())

    # sums ------------------------------------------------------------------------------

    @property
    def scale(self) -> float:
        """What noise is multiplied by so that its share in the mean is that in a larger cohort."""
        return 1.0 if self.cohort is None else self.clients / self.cohort

    def _split(self) -> tuple[float, float | None]:
        """z of the sum, and the noise of the count of short rows: both cost what z does."""
        if self.quantile is None or self.noise <= 0:
            return self.noise, None if self.quantile is None else 0.0
        below = max((self.cohort or self.clients) / 20, self.noise / sqrt(4 * QUANTILE_SHARE))
        return (self.noise**-2 - (2 * below) ** -2) ** -0.5, below

    def release(
        self, sums: Mapping[str, Tensor], guard: Guard, step: str, weight: float, source: Source
    ) -> tuple[Means, dict[str, float]]:
        """Private means of clipped rows that were added up, and what may be recorded of them."""
        own = {name: value for name, value in sums.items() if name != BELOW}
        noise, below = self._split()
        sizes = {name: self.scale * noise * unit for name, unit in guard.units(own).items()}
        added = not guard.noise
        noisy = {
            name: self._noised(value, sizes[name], name, source) if added else value
            for name, value in own.items()
        }
        facts = {"dp_snr": _signal_to_noise(noisy, sizes), "dp_clip": guard.limits[0][1]}
        if below is not None and self.quantile is not None:
            told = sums[BELOW].double()
            told = self._noised(told, self.scale * below, BELOW, source) if added else told
            share = float(told.sum()) / self.clients + 0.5
            change = exp(-QUANTILE_LR * (share - self.quantile))
            self.factors[step] = self.factors.get(step, 1.0) * change
            facts["dp_unclipped"] = min(1.0, max(0.0, share))
        return Means(noisy, weight, self.clients), facts

    def _noised(self, value: Tensor, size: float, name: str, source: Source) -> Tensor:
        count = prod(value.shape)
        if self.secret:
            numbers = gaussian.secret(1, count)[0]
        else:
            numbers = source(f"dp noise {self.now} {name}").standard_normal(count)
        noise = torch.from_numpy(numbers).view(value.shape).to(value.device)
        return (value.double() + size * noise).to(value.dtype)

    # what was released -------------------------------------------------------------------

    def end_round(self) -> None:
        """What this round has released is what was released before from here on."""
        if any(self.now):
            self.rounds[self.now[0], self.now[1]] += 1
        self.now = [0, 0]

    def facts(self) -> dict[str, Any]:
        """What a checkpoint keeps; `restore` is the opposite."""
        return {"rounds": [[*kind, n] for kind, n in self.rounds.items()], "factors": self.factors}

    def restore(self, facts: Mapping[str, Any]) -> None:
        self.rounds = Counter({(a, b): n for a, b, n in facts["rounds"]})
        self.factors, self.now = dict(facts["factors"]), [0, 0]


def _signal_to_noise(noisy: Mapping[str, Tensor], sizes: Mapping[str, float]) -> float:
    """The length of what was summed over that of the noise, estimated from what is released."""
    found = sum(float(value.double().square().sum()) for value in noisy.values())
    noise = sum(sizes[name] ** 2 * value.numel() for name, value in noisy.items())
    return sqrt(max(0.0, found / noise - 1)) if noise else float("inf")
