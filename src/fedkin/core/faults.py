"""Clients that fail, on purpose: lost, answering nonsense, or slow."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.core import rng


@dataclass(frozen=True)
class Faults:
    """How often a request to a client goes wrong, each drawn anew for every request.

    drop: the request is lost, nothing happens at the client. nan: the client works,
    its answer is NaN. slow: the answer comes `delay` seconds late; with a `timeout`
    below that the server stops waiting and the answer is lost (the work was done).
    """

    drop: float = 0.0
    nan: float = 0.0
    slow: float = 0.0
    delay: float = 0.0
    timeout: float | None = None

    def any(self) -> bool:
        """Whether anything is to go wrong at all."""
        return self.drop > 0 or self.nan > 0 or self.slow > 0

    def draw(self, keys: rng.Bits) -> RequestFaults:
        """What happens to each client of a request."""
        u = rng.uniform(rng.bits(rng.key(keys, "fault"), rng.positions(0, 3)))
        slow = u[:, 2] < self.slow
        cut_off = self.timeout is not None and self.timeout < self.delay
        pause = min(self.delay, self.timeout or self.delay) if slow.any() else 0.0
        return RequestFaults(u[:, 0] < self.drop, u[:, 1] < self.nan, slow & cut_off, pause)


@dataclass(frozen=True)
class RequestFaults:
    """One request's faults, a flag per client."""

    lost: NDArray[np.bool_]
    nan: NDArray[np.bool_]
    late: NDArray[np.bool_]
    pause: float

    def spoil(self, reply: dict[str, Tensor], positions: Tensor) -> dict[str, Tensor]:
        """The reply with the rows of faulty clients turned into NaN."""
        chosen: Any = self.nan[positions.numpy()]
        if not chosen.any():
            return reply
        mask = torch.from_numpy(chosen)
        return {
            name: torch.where(mask.to(v.device).view(-1, *[1] * (v.dim() - 1)), torch.nan, v)
            if v.is_floating_point()
            else v
            for name, v in reply.items()
        }

    def wait(self) -> None:
        """Spend the time that the slowest answer takes."""
        if self.pause:
            time.sleep(self.pause)
