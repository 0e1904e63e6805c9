"""What a run writes as it goes, and how it goes on from it: tables, checkpoints, the best round."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin.core.metrics import get_metric
from fedkin.core.problem import Problem
from fedkin.errors import DivergedError, FedkinError
from fedkin.methods import Local, Method
from fedkin.runs import checkpoint
from fedkin.runs.contender import (
    Contender,
    choices_of,
    go_on_with,
    restore_contenders,
    save_contenders,
)
from fedkin.runs.early import BEST, best_round, go_back
from fedkin.runs.evaluation import Scores
from fedkin.runs.folder import RunFolder
from fedkin.runs.measures import Measure
from fedkin.runs.privacy import Guarantee, write_privacy
from fedkin.runs.records import numbers_row
from fedkin.runs.schedule import scheduled
from fedkin.runs.settings import Settings


class Keeper:
    """The half of a trainer that knows files: a killed run goes on as if it had not been."""

    problem: Problem
    method: Method
    settings: Settings
    folder: RunFolder | None
    contenders: dict[str, Contender]
    guarantee: Guarantee | None
    metric_names: tuple[str, ...]
    metrics: list[dict[str, Any]]
    timing: list[dict[str, Any]]
    clients: list[dict[str, list[Any]]]
    round: int
    saved_round: int
    _cause: str
    _ended: bool
    _planned: dict[str, Any]
    _scores: dict[str, Scores]
    _spare: tempfile.TemporaryDirectory[str] | None
    _threads: int

    def _evaluate(self, number: int, last: bool) -> dict[str, Scores]:
        raise NotImplementedError

    @property
    def measure(self) -> Measure:
        """What the run is measured by."""
        return Measure.of(get_metric(self.metric_names[0]))

    @property
    def _baseline(self) -> bool:
        """Whether there is local-only training beside the method."""
        return self.settings.baseline and not isinstance(self.method, Local)

    def _diverged(self, sentence: str) -> DivergedError:
        """With what to do about it."""
        return DivergedError(f"{sentence}; {self._cause}")

    # writing ---------------------------------------------------------------------------

    def _write(self, folder: RunFolder, clients: dict[str, list[Any]]) -> None:
        self._keep_strategy(folder)
        if self.guarantee is not None:
            write_privacy(folder.path, self.guarantee)
        fed = self.contenders["method"].fed
        folder.append("metrics.csv", {name: [v] for name, v in self.metrics[-1].items()})
        folder.append("timing.csv", {name: [v] for name, v in self.timing[-1].items()})
        folder.append("clients.csv", clients)
        for name, value in fed.records.items():
            if isinstance(value, Tensor) and value.dim():
                folder.append(f"diagnostics/{name}.csv", numbers_row(self.round, value))
        if fed.not_finite:
            names = ", ".join(self.problem.data.names[i] for i in fed.not_finite[:10])
            folder.log(f"round {self.round}: left out answers that are not finite: {names}")

    def _keep_strategy(self, folder: RunFolder) -> None:
        """Choices depend on timing, so they are kept before anything that depends on them."""
        facts = {**self._planned, "threads": self._threads}
        for name, chosen in choices_of(self.contenders).items():
            if len(chosen) > len(facts.get(name, ())):
                facts[name] = chosen
        if facts != self._planned:
            folder.keep_strategy(facts)
            self._planned = facts

    def save(self) -> None:
        """Write a checkpoint of the present round, unless there is one."""
        assert self.folder is not None
        if self.saved_round == self.round:
            return
        broken = [name for contender in self.contenders.values() for name in contender.broken()]
        if broken:
            raise self._diverged(
                f"training diverged by round {self.round}, for all clients: the server's "
                f"'{broken[0]}' is not finite"
            )
        self.folder.sync()
        self._save_in(self.folder.checkpoints)
        self.saved_round = self.round

    def _save_in(self, place: Path) -> None:
        tensors, numbers = save_contenders(self.contenders)
        facts = {"about": self._about(), "numbers": numbers, "choices": choices_of(self.contenders)}
        checkpoint.save(place, self.round, tensors, facts)

    def _best_place(self) -> Path:
        """Where the checkpoint of the best round is."""
        if self.folder:
            return self.folder.path / BEST
        self._spare = self._spare or tempfile.TemporaryDirectory()
        return Path(self._spare.name)

    def _go_back(self) -> None:
        """Return to the best round by validation: its models are the run's, its scores the last."""
        best = best_round(self.metrics, self.measure)
        if best in (0, self.round):
            return
        found, _ = checkpoint.latest(self._best_place())
        if found is None or found.round != best:
            raise FedkinError(
                f"the checkpoint of the best round, {best}, in {self._best_place()} is damaged, so "
                "its models are lost: the run can be repeated with `fedkin run` and its config.toml"
            )
        if self.folder:
            go_back(self.folder, best, self.round)
            self.folder.cut_back(best)
        for contender in self.contenders.values():
            contender.fed.engine.memory.forget()  # type: ignore[attr-defined]
        restore_contenders(self.contenders, found.tensors(), found.stated().numbers)
        self.metrics, self.timing = self.metrics[:best], self.timing[:best]
        self.clients = [table for table in self.clients if table["round"][0] <= best]
        self.round, self._ended = best, True
        self._scores = self._evaluate(best, True)

    def resume(self) -> list[str]:
        """Return to the newest valid checkpoint; gives sentences about damage that was found."""
        assert self.folder is not None
        place = self._best_place() if self._ended else self.folder.checkpoints
        found, damage = checkpoint.latest(place)
        stated = found.stated() if found else None
        if found and stated and stated.about != self._about():
            raise FedkinError(
                f"checkpoint {found.path} was made with {_listed(stated.about)}, but "
                f"config.toml says {_listed(self._about())}: restore config.toml"
            )
        if found and stated:  # before anything is cut
            behind = restore_contenders(self.contenders, found.tensors(), stated.numbers)
            go_on_with(self.contenders, stated.plain_choices())
            for contender in behind:
                self._catch_up(contender, found.round)
        self.round = self.saved_round = found.round if found else 0
        self.folder.cut_back(self.round)
        for name in ("metrics", "timing"):
            table = self.folder.table(f"{name}.csv").astype(object)
            setattr(self, name, table.where(table.notna(), None).to_dict("records"))
        if len(self.metrics) != self.round:
            lost = self.round - len(self.metrics)
            damage.append(f"{self.folder.path / 'metrics.csv'} has lost {lost} of its rows")
        if self.guarantee is not None:
            self.guarantee.catch_up(self.folder.path)
        if found and not damage:  # left over from a process killed during a save
            checkpoint.prune(place, self.round)
        if damage:
            again = f"continuing after round {self.round}"
            damage.append(again if found else "no checkpoint is left: starting from round 0 again")
        return damage

    def _catch_up(self, contender: Contender, last: int) -> None:
        """Train a contender that the checkpoint does not have, up to this round."""
        for number in range(1, last + 1):
            now = scheduled(contender.method, self.settings, number)
            contender.step(number, number == self.settings.rounds, now)

    def _about(self) -> dict[str, Any]:
        """Facts that must be equal in a checkpoint and in the run that reads it."""
        return {
            "method": self.method.name,
            "clients": self.problem.num_clients,
            "parameters": self.problem.size,
            "baseline": self._baseline,
            **({"noise": self.guarantee.privacy.noise} if self.guarantee else {}),
        }


def _listed(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
