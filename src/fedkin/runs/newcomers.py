"""Newcomers: clients that were not there get a model from a run, without touching the others'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from fedkin.core.federation import Federation, Request, Requests
from fedkin.data.clients import ClientData
from fedkin.engines import Embedded
from fedkin.errors import FedkinError
from fedkin.methods import Method, State
from fedkin.methods.base import use
from fedkin.methods.fedavg import fine_tune
from fedkin.runs.contender import Contender, local_like
from fedkin.runs.evaluation import score
from fedkin.runs.measures import choose_metrics
from fedkin.runs.norms import STATISTICS, completed, mean_statistics
from fedkin.runs.reading import read_table

TABLE = "newcomers.csv"
# steps at home after which newcomers' models are judged
STEPS = (0, 1, 5, 10)


class Newcomers:
    """Clients of their own federation that ask a finished run for models.

    `hosts`: the data of the clients that took part are here; where they are not, `statistics`
    are what averaged norms go by.
    """

    def __init__(
        self,
        contender: Contender,
        data: ClientData,
        number: int,
        hosts: bool,
        metrics: Sequence[str] = (),
        statistics: Tensor | None = None,
    ) -> None:
        self.contender, self.number = contender, number
        fed = contender.fed
        self.metrics = metrics or choose_metrics(fed.problem, ())
        problem = fed.problem.with_data(data, fed.problem.device)
        self.fed = Federation(problem, Embedded(problem), fed.seed)
        self.fed.after_round(number)
        fed.after_round(number)
        self.start = contender.method.welcome(fed, contender.state, self.fed, hosts).clone()
        # averaged norms go by the data of those that took part, also here
        if problem.norm == "averaged" and hosts:
            kinds, which = self.start.unique(dim=0, return_inverse=True)
            asks = [fed.request(use, shared={"model": model}) for model in kinds]
            statistics = torch.stack([mean_statistics(fed, ask) for ask in asks])[which]
        rows = None if statistics is None else statistics.expand(len(self.start), -1)
        self._norms = {} if rows is None else {STATISTICS: rows}

    def models(self, steps: int, lr: float) -> Request:
        """The request for every newcomer's model after some steps at home.

        The first of ten steps are the same as those of five.
        """
        self.fed.after_round(self.number + 1)
        if steps == 0:
            return self.fed.request(use, each={"model": self.start, **self._norms})
        own = {"x": self.start, **self._norms}
        return self.fed.request(fine_tune, each=own, lr=lr, local_steps=steps)

    def complete_models(self, steps: int, lr: float) -> Tensor:
        """Every newcomer's model after some steps at home, with all that makes its module."""
        return self.fed.look(completed(self.fed, self.models(steps, lr)))["model"]

    def judge(self, steps: Sequence[int], lr: float, rounds: int) -> pd.DataFrame:
        """One row per newcomer and number of steps, and one for a model trained alone.

        Alone is local-only training with as many steps as a client of the run took. All are
        judged on test data, which no step has seen.
        """
        found = [self._rows(str(k), self.fed, self.models(k, lr)) for k in steps]
        alone = self._alone(rounds)
        own = self._rows("alone", alone.fed, alone.models(rounds))
        return pd.concat([*found, own], ignore_index=True)

    def _alone(self, rounds: int) -> Contender:
        method = local_like(self.contender.method, whole=True)  # as the model that it is given
        problem = self.fed.problem
        own = Contender(method, Federation(problem, Embedded(problem), self.fed.seed), State())
        for number in range(1, rounds + 1):
            own.step(number)
        return own

    def _rows(self, steps: str, fed: Federation, asked: Requests) -> pd.DataFrame:
        scores = score(fed, asked, metrics=self.metrics)
        data = self.fed.problem.data
        return pd.DataFrame(
            {
                "client": list(data.names),
                "steps": steps,
                **{name: scores[name].tolist() for name in (*self.metrics, "loss")},
                "train_samples": data.train.sizes.tolist(),
                "test_samples": data.test.sizes.tolist(),
            }
        )


def read_newcomers(folder: Path) -> pd.DataFrame:
    """The table of newcomers in a run folder; empty if there is none."""
    return read_table(folder / TABLE, ("client", "steps"), words=("client", "steps"))


def home_lr(method: Method, given: float | None = None) -> float:
    """The size of steps at home: what is given, or the method's own."""
    for value in (given, getattr(method, "tune_lr", None), getattr(method, "lr", None)):
        if value is not None:
            return float(value)
    raise FedkinError(f"method '{method.name}' has no lr: give one for steps at home with --lr")


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Means over newcomers for each number of steps, in order."""
    other = ("client", "steps", "train_samples", "test_samples")
    columns = [c for c in table if c not in other and table[c].notna().any()]
    order = list(dict.fromkeys(table["steps"]))
    means: pd.DataFrame = table.groupby("steps")[columns].mean().loc[order].reset_index()
    return means
