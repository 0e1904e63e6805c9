"""A finished run in Python: tables as data frames, models as modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pandas as pd
import torch
from torch import Tensor, nn

from fedkin.core.federation import parts
from fedkin.core.problem import Problem
from fedkin.errors import FedkinError, unknown
from fedkin.runs.contender import Contender
from fedkin.runs.folder import RunFolder, read_table


class Trained(Protocol):
    """What a run needs of the trainer that made it."""

    problem: Problem
    folder: RunFolder | None
    round: int
    contenders: dict[str, Contender]
    metrics: list[dict[str, Any]]
    timing: list[dict[str, Any]]
    clients: list[dict[str, list[Any]]]


def client_number(names: Sequence[str], client: int | str) -> int:
    """A client's place among all clients, from its number or its name.

    Digits as text, as on a command line, are a name if there is such a name.
    """
    if isinstance(client, str) and client in names:
        return names.index(client)
    if isinstance(client, str) and not client.isdigit():
        raise unknown("client", client, names)
    if not 0 <= int(client) < len(names):
        raise FedkinError(f"there is no client {client}: clients are 0 to {len(names) - 1}")
    return int(client)


class PersonalModels(Mapping[int | str, nn.Module]):
    """`models[17]` or `models["clinic-a"]`: that client's model, a plain module."""

    def __init__(self, problem: Problem, models: Mapping[int, tuple[Problem, Tensor]]) -> None:
        self.problem, self.models = problem, models

    def __getitem__(self, client: int | str) -> nn.Module:
        own_size, vector = self.models[self.number(client)]
        return own_size.module(vector)

    def number(self, client: int | str) -> int:
        return client_number(self.problem.data.names, client)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.models)))

    def __len__(self) -> int:
        return len(self.models)


class LiveModels(Mapping[int, tuple[Problem, Tensor]]):
    """Each client's model and its form of the problem, computed on access."""

    def __init__(self, trainer: Trained) -> None:
        self._contender, self._problem = trainer.contenders["method"], trainer.problem
        self._asks = parts(self._contender.models(trainer.round))
        numbers = [(request, at) for request in self._asks for at in enumerate(request.at.tolist())]
        self._places = {client: (request, position) for request, (position, client) in numbers}

    def __getitem__(self, client: int) -> tuple[Problem, Tensor]:
        request, position = self._places[client]
        model = self._contender.fed.look(request.rows(torch.tensor([position])))["model"]
        return self._problem.variant(request.variant), model[0]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._places))

    def __len__(self) -> int:
        return len(self._places)


class Run:
    """The result of training: `metrics`, `clients`, `personal`, `mixing`."""

    def __init__(self, problem: Problem, trainer: Trained) -> None:
        self.problem, self.trainer = problem, trainer
        self.folder = trainer.folder.path if trainer.folder else None

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per round."""
        return pd.DataFrame(self.trainer.metrics)

    @property
    def clients(self) -> pd.DataFrame:
        """One row per client and evaluation."""
        if self.folder:
            return read_table(self.folder / "clients.csv")
        tables = [pd.DataFrame(table) for table in self.trainer.clients]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    @property
    def timing(self) -> pd.DataFrame:
        """Seconds of every round."""
        return pd.DataFrame(self.trainer.timing)

    @property
    def accuracy(self) -> float:
        """Mean personal accuracy at the last evaluation."""
        return float(self.metrics["personal_accuracy"].dropna().iloc[-1])

    @property
    def personal(self) -> PersonalModels:
        """Every client's own model."""
        return PersonalModels(self.problem, LiveModels(self.trainer))

    @property
    def mixing(self) -> Tensor | None:
        """How much every client (row) learns from every other (column), if the method knows."""
        contender = self.trainer.contenders["method"]
        return contender.method.results(contender.state).get("mixing")
