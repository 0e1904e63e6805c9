"""Who takes part: the clients as the server knows them, and who is asked in a round."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core import rng
from fedkin.core.problem import Problem
from fedkin.errors import FedkinError, unknown


class Participants:
    """What a federation knows of its clients without asking them."""

    problem: Problem
    seed: int
    fraction: float
    sampling: str
    size: int  # how many clients there are
    round: int

    @property
    def samples(self) -> Tensor:
        """Training examples per client."""
        return self.problem.train.sizes

    def column(self, name: str) -> list[Any]:
        """A fact about every client, from the table that came with the data."""
        columns = self.problem.data.columns
        if not columns:
            raise FedkinError(
                f"unknown client column '{name}': nothing is known about clients; give a table "
                "with a row for each as client_table"
            )
        if name not in columns:
            raise unknown("client column", name, columns)
        return columns[name]

    def initial_model(self) -> Tensor:
        """A copy of the model that all clients start from."""
        return self.problem.initial[0].clone()

    def random(self, purpose: str) -> np.random.Generator:
        """The server's own random numbers for a purpose in this round."""
        word = rng.key(self.seed, self.round, "server", purpose)
        return np.random.Generator(np.random.Philox(key=int(word[0])))

    @property
    def asked(self) -> int:
        """How many clients take part in a round."""
        return self.count_asked(self.fraction, self.size)

    @staticmethod
    def count_asked(fraction: float, clients: int) -> int:
        """How many of so many clients this share is, at least one."""
        return min(clients, max(1, round(fraction * clients)))

    @property
    def share(self) -> float:
        """The probability with which a client takes part in a round."""
        return self.fraction if self.sampling == "poisson" else self.asked / self.size

    def sample(self) -> Tensor:
        """The clients taking part in this round, in rising order."""
        if self.sampling == "poisson":
            taking = self.random("sample").random(self.size) < self.fraction
            return torch.from_numpy(np.flatnonzero(taking))
        if self.asked == self.size:
            return torch.arange(self.size)
        chosen = self.random("sample").choice(self.size, self.asked, replace=False)
        return torch.from_numpy(np.sort(chosen))
