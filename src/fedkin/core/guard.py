"""What a client does to its own answer before it leaves: clip it and, on request, add noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from fedkin.core import gaussian, rng
from fedkin.errors import FedkinError

# the answer to "were you shorter than the limit?", +1/2 or -1/2
BELOW = "dp.below"
# so that rounding to single precision does not make a clipped row longer than its limit
SPARE = 1 - 2.0**-20


@dataclass(frozen=True)
class Guard:
    """Clip a row to limits, and add noise to it.

    limits: the longest that a tensor may be, by name; under "" all tensors as one vector. Without
    any, nothing may leave at all.
    noise: the standard deviation of what the client adds to every number, in units of the row's
    sensitivity. alone: the row reaches the server as it is and not in a sum, so that an
    answer under the name of something given stands for its change. below: tell also whether the
    row was shorter than its limit, with noise of this standard deviation (None: do not tell).
    secret: noise comes from the system's cryptographic generator, not from the seed.
    """

    limits: tuple[tuple[str, float], ...]
    noise: float = 0.0
    alone: bool = False
    below: float | None = None
    secret: bool = False

    def facts(self) -> dict[str, Any]:
        """As json can carry it; `guard_of` is the opposite."""
        return asdict(self)

    def units(self, names: Mapping[str, Any]) -> dict[str, float]:
        """For every tensor what its sensitivity is, as a part of the whole row's."""
        limits = dict(self.limits)
        if "" in limits:
            return dict.fromkeys(names, limits[""])
        missing = sorted(set(names) - set(limits))
        if missing:
            raise FedkinError(
                f"dp_clip has no limit for '{missing[0]}', which this method sends too: give one "
                f"for each of {', '.join(names)}, or one number for all"
            )
        # with one limit each, a row of k tensors has length sqrt(k) in units of these limits
        count = sqrt(len(names))
        return {name: count * limits[name] for name in names}

    def protect(
        self, rows: Mapping[str, Tensor], given: Mapping[str, Tensor], keys: rng.Bits
    ) -> dict[str, Tensor]:
        """Rows that may leave."""
        if not self.limits:
            if rows:
                raise FedkinError(
                    "single clients' answers would be sent to the server, which noise on sums does "
                    "not protect: differential privacy is for methods that only take means"
                )
            return {}
        bases = {name: given[name] for name in rows if self.alone and name in given}
        moved = {name: v - bases[name] if name in bases else v for name, v in rows.items()}
        found = self.clipped(moved)
        if self.below is not None:
            found[BELOW] = self._short(moved)
        if self.noise or self.below:
            found = self._noised(found, keys)
        return {name: v + bases[name] if name in bases else v for name, v in found.items()}

    def clipped(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every row shortened to its limits."""
        self.units(rows)
        return {name: v * factor_like(v, self._factor(rows, name)) for name, v in rows.items()}

    def _factor(self, rows: Mapping[str, Tensor], name: str) -> Tensor:
        limits = dict(self.limits)
        if "" in limits:
            return shortening(lengths(list(rows.values())), limits[""])
        return shortening(lengths([rows[name]]), limits[name])

    def _short(self, rows: Mapping[str, Tensor]) -> Tensor:
        """+1/2 where a row needs no clipping, else -1/2; a column."""
        factors = torch.stack([self._factor(rows, name) for name in rows]).amin(0)
        return (factors >= 1).to(factors.dtype)[:, None] - 0.5

    def _noised(self, rows: Mapping[str, Tensor], keys: rng.Bits) -> dict[str, Tensor]:
        own = {name: v for name, v in rows.items() if name != BELOW}
        sizes = {name: self.noise * unit for name, unit in self.units(own).items()}
        sizes[BELOW] = self.below or 0.0
        found = {}
        for name, value in rows.items():
            count = value[0].numel() if len(value) else 0
            numbers = (
                gaussian.secret(len(value), count)
                if self.secret
                else gaussian.of_keys(keys, f"dp noise {name}", count)
            )
            noise = torch.from_numpy(numbers).view(len(value), *value.shape[1:])
            found[name] = (value.double() + sizes[name] * noise.to(value.device)).to(value.dtype)
        return found


def guard_of(facts: Mapping[str, Any] | None) -> Guard | None:
    """A guard from its facts, checked: they come from another machine."""
    if facts is None:
        return None
    guard = Guard(**{**facts, "limits": tuple((str(k), float(v)) for k, v in facts["limits"])})
    numbers = [v for _, v in guard.limits] + [guard.noise, guard.below or 0.0]
    if not all(0 <= v < inf for v in numbers):
        raise FedkinError("the limits of what may leave this client are not numbers")
    return guard


def lengths(tensors: list[Tensor]) -> Tensor:
    """The length of each row of these tensors together, in double precision."""
    squares = [v.double().flatten(1).square().sum(1) for v in tensors]
    return torch.stack(squares).sum(0).sqrt()


def shortening(length: Tensor, limit: float) -> Tensor:
    """What rows of these lengths are multiplied by to be no longer than a limit."""
    return torch.where(length <= limit, 1.0, SPARE * limit / length)


def factor_like(value: Tensor, factor: Tensor) -> Tensor:
    """A number per row, in the shape and type of the rows."""
    return factor.to(value.device, value.dtype).view(-1, *[1] * (value.dim() - 1))
