"""A finished run in Python: tables as data frames, models as modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pandas as pd
import torch
from torch import Tensor, nn

from fedkin.core.federation import parts
from fedkin.core.metrics import get_metric
from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.runs.contender import Contender
from fedkin.runs.display import Shown
from fedkin.runs.folder import RunFolder
from fedkin.runs.measures import Measure
from fedkin.runs.names import client_at, client_number
from fedkin.runs.norms import completed
from fedkin.runs.reading import read_table


class Trained(Protocol):
    """What a run needs of the trainer that made it."""

    problem: Problem
    folder: RunFolder | None
    round: int
    metric_names: tuple[str, ...]
    contenders: dict[str, Contender]
    metrics: list[dict[str, Any]]
    timing: list[dict[str, Any]]
    clients: list[dict[str, list[Any]]]

    def newcomers(self) -> pd.DataFrame: ...


def last_score(metrics: pd.DataFrame, name: str) -> float:
    """Mean score of personal models at the last evaluation."""
    known = metrics.get(f"personal_{name}", pd.Series(dtype=float)).dropna()
    if not len(known):
        has = [c.removeprefix("personal_") for c in metrics if c.startswith("personal_")]
        found = [name for name in has if metrics[f"personal_{name}"].notna().any()]
        raise FedkinError(
            f"this run has no {name}; it has {', '.join(found) or 'not been evaluated yet'}"
        )
    return float(known.iloc[-1])


class PersonalModels(Mapping[int | str, nn.Module]):
    """`models["clinic-a"]` or `models[17]`: that client's model, a plain module.

    Text is a client's name. A number is the client of that name if there is one; a place,
    from 0, if no name is a number; otherwise refused. `at(17)` is always a place. The keys are
    the names. The module takes inputs that are made ready as the training data were; numbers
    it predicts are in the scale it was trained in (`fedkin predict` undoes both).
    """

    def __init__(self, problem: Problem, models: Mapping[int, tuple[Problem, Tensor]]) -> None:
        self.problem, self.models = problem, models

    def __getitem__(self, client: int | str) -> nn.Module:
        return self.at(self.number(client))

    def at(self, place: int) -> nn.Module:
        """The model of the client at this place, from 0."""
        own_size, vector = self.models[client_at(self.problem.data.names, place)]
        return own_size.module(vector)

    def number(self, client: int | str) -> int:
        return client_number(self.problem.data.names, client)

    def __iter__(self) -> Iterator[str]:
        return iter(self.problem.data.names)

    def __len__(self) -> int:
        return len(self.models)


class LiveModels(Mapping[int, tuple[Problem, Tensor]]):
    """Each client's model and its form of the problem, computed on access."""

    def __init__(self, trainer: Trained) -> None:
        self._contender, self._problem = trainer.contenders["method"], trainer.problem
        fed = self._contender.fed
        self._asks = [completed(fed, ask) for ask in parts(self._contender.models(trainer.round))]
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


class Run(Shown):
    """The result of training: `metrics`, `clients`, `personal`, `mixing`, and `plot()`."""

    def __init__(self, problem: Problem, trainer: Trained) -> None:
        self.problem, self.trainer = problem, trainer
        self.folder = trainer.folder.path if trainer.folder else None

    @property
    def label(self) -> str:
        return self.trainer.contenders["method"].method.name

    @property
    def measures(self) -> list[Measure]:
        """What the run is measured by, the deciding measure first."""
        return [Measure.of(get_metric(name)) for name in self.trainer.metric_names]

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
    def metric(self) -> str:
        """The metric that decides."""
        return self.trainer.metric_names[0]

    @property
    def accuracy(self) -> float:
        """Mean personal accuracy at the last evaluation."""
        return last_score(self.metrics, "accuracy")

    @property
    def score(self) -> float:
        """Mean of the deciding metric over personal models, at the last evaluation."""
        return last_score(self.metrics, self.metric)

    @property
    def personal(self) -> PersonalModels:
        """Every client's own model."""
        return PersonalModels(self.problem, LiveModels(self.trainer))

    @property
    def newcomers(self) -> pd.DataFrame:
        """One row per client that was kept out (`unseen`) and number of steps at home."""
        return self.trainer.newcomers()

    @property
    def mixing(self) -> Tensor | None:
        """How much every client (row) learns from every other (column), if the method knows.

        With PERM a sparse matrix beyond 2,000 clients.
        """
        contender = self.trainer.contenders["method"]
        return contender.method.results(contender.state).get("mixing")
