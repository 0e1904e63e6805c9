"""The run: rounds, evaluation, records, checkpoints, resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkin.engines import Embedded, make_engine
from fedkin.errors import DivergedError, FedkinError, unknown
from fedkin.evaluation import Scores, score, score_model
from fedkin.faults import Faults
from fedkin.federation import Federation
from fedkin.memory import Memory
from fedkin.methods import Local, Method, State
from fedkin.problem import Problem
from fedkin.records import client_rows, metrics_row
from fedkin.registry import get_method
from fedkin.results import checkpoint
from fedkin.results.folder import RunFolder
from fedkin.results.inputs import keep_inputs
from fedkin.results.models import save_models
from fedkin.results.pictures import write_results
from fedkin.results.run import Run
from fedkin.tensors import Chunked


@dataclass(frozen=True)
class Settings:
    """How a run goes, whatever its method: see `fedkin config` for every key's meaning."""

    rounds: int = 100
    seed: int = 0
    fraction: float = 1.0
    eval_every: int = 10
    checkpoint_every: int = 10
    baseline: bool = True
    engine: str = "embedded"
    strategy: str = "auto"
    block_size: int | None = None
    threads: int | None = None
    memory: int | None = None
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        for name in ("rounds", "eval_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise FedkinError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.fraction <= 1:
            raise FedkinError(f"fraction must be above 0 and at most 1, not {self.fraction}")


@dataclass
class Lane:
    """One method with its own clients' memory, accounts and state."""

    method: Method
    fed: Federation
    state: State

    def tensors(self) -> dict[str, Tensor | Chunked]:
        found: dict[str, Tensor | Chunked] = {"accounts": self.fed.accounts.table}
        for name, value in vars(self.state).items():
            if isinstance(value, Tensor):
                found[f"state.{name}"] = value
        memory = self.fed.engine.memory.state()  # type: ignore[attr-defined]
        return found | {f"memory.{name}": value for name, value in memory.items()}

    def numbers(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self.state).items() if not isinstance(v, Tensor)}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        self.fed.accounts.table = tensors["accounts"][:].clone()
        device = self.fed.problem.device
        state = {
            name.removeprefix("state."): _whole(value).to(device)
            for name, value in tensors.items()
            if name.startswith("state.")
        }
        self.state = State(**state, **numbers)
        memory = {
            name.removeprefix("memory."): value
            for name, value in tensors.items()
            if name.startswith("memory.")
        }
        self.fed.engine.memory.restore(memory)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Progress:
    """What a progress display needs after every round."""

    round: int
    rounds: int
    accuracy: float | None


class Trainer:
    """Advances a method, and local-only training beside it, round by round.

    With a folder everything worth keeping is written there as it happens, and
    `resume` continues exactly where the last checkpoint stands.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method,
        settings: Settings | None = None,
        folder: RunFolder | None = None,
    ) -> None:
        self.problem, self.method, self.folder = problem, method, folder
        self.settings = settings or Settings()
        self.round, self.stopping = 0, False
        self.seconds: list[float] = []
        self.lanes = {"method": self._lane(method, "method")}
        if self.settings.baseline and not isinstance(method, Local):
            self.lanes["local"] = self._lane(local_like(method), "local")
        self.metrics: list[dict[str, Any]] = []
        self.clients: list[dict[str, Any]] = []
        if folder:
            keep_inputs(folder.path, problem)

    def _lane(self, method: Method, name: str) -> Lane:
        s = self.settings
        spill = self.folder.path / "memory" / name if self.folder else None
        memory = Memory(self.problem.num_clients, s.memory, spill)
        engine = make_engine(s.engine, self.problem, s.strategy, s.block_size, s.threads, memory)
        fed = Federation(self.problem, engine, s.seed, s.fraction, s.faults)
        return Lane(method, fed, method.init(fed))

    @property
    def strategy(self) -> str | None:
        """What the embedded engine chose, once it has."""
        engine = self.lanes["method"].fed.engine
        return str(engine.chosen) if isinstance(engine, Embedded) and engine.chosen else None

    # rounds --------------------------------------------------------------------------

    def run(self, on_round: Callable[[Progress], None] | None = None) -> Run:
        """Train until the last round, or until `stopping` is set."""
        while self.round < self.settings.rounds and not self.stopping:
            self.step()
            if on_round:
                accuracy = self.metrics[-1].get("personal_accuracy") if self.metrics else None
                on_round(Progress(self.round, self.settings.rounds, accuracy))
        if self.folder and self.round == self.settings.rounds:
            self._finish(self.folder)
        return Run(self.problem, self)

    def step(self) -> None:
        """One round of every lane, evaluated and saved when due."""
        number = self.round + 1
        for name, lane in self.lanes.items():
            start = time.perf_counter()
            lane.fed.begin_round(number)
            lane.method.round(lane.fed, lane.state)
            if name == "method":  # what the baseline beside it takes is not its cost
                self.seconds.append(time.perf_counter() - start)
        last = number == self.settings.rounds
        scores = self._evaluate(number) if last or number % self.settings.eval_every == 0 else {}
        fed = self.lanes["method"].fed
        self.metrics.append(metrics_row(number, fed, scores))
        rows = client_rows(number, fed, scores) if scores else []
        self.clients += rows
        self.round = number
        if self.folder:
            self._write(self.folder, rows)
            if last or number % self.settings.checkpoint_every == 0:
                self.save()

    def _evaluate(self, number: int) -> dict[str, Scores]:
        lane = self.lanes["method"]
        models = lane.method.personal(lane.fed, lane.state)
        found = {"personal": score(lane.fed, models)}
        if self.problem.data.validation is not None:
            found["validation"] = score(lane.fed, models, "validation")
        model = lane.method.global_model(lane.state)
        if model is not None:
            found["global"] = score_model(lane.fed, model)
        if "local" in self.lanes:
            alone = self.lanes["local"]
            found["local"] = score(alone.fed, alone.method.personal(alone.fed, alone.state))
        bad = torch.isnan(found["personal"].loss) & (found["personal"].examples > 0)
        if bool(bad.any()):
            names = [self.problem.data.names[i] for i in bad.nonzero()[:5, 0].tolist()]
            raise DivergedError(
                f"training diverged by round {number}: the personal models of {int(bad.sum())} "
                f"clients ({', '.join(names)}) are not finite; lower the learning rate"
            )
        return found

    # keeping -------------------------------------------------------------------------

    def _write(self, folder: RunFolder, client_rows: list[dict[str, Any]]) -> None:
        fed = self.lanes["method"].fed
        folder.append("metrics.csv", self.metrics[-1:])
        folder.append("clients.csv", client_rows)
        folder.append("timing.csv", [{"round": self.round, "seconds": self.seconds[-1]}])
        for name, value in fed.records.items():
            if isinstance(value, Tensor) and value.dim():
                numbers = enumerate(value.flatten().tolist())
                row = {"round": self.round} | {str(i): number for i, number in numbers}
                folder.append(f"diagnostics/{name}.csv", [row])
        if fed.not_finite:
            names = ", ".join(self.problem.data.names[i] for i in fed.not_finite[:10])
            folder.log(f"round {self.round}: answers that are not finite left out: {names}")

    def save(self) -> None:
        """Write a checkpoint of the present round."""
        assert self.folder is not None
        tensors: dict[str, Tensor | Chunked] = {}
        numbers: dict[str, dict[str, Any]] = {}
        for name, lane in self.lanes.items():
            tensors |= {f"{name}.{key}": value for key, value in lane.tensors().items()}
            numbers[name] = lane.numbers()
        checkpoint.save(self.folder.checkpoints, self.round, tensors, numbers)

    def resume(self) -> list[str]:
        """Go back to the newest sound checkpoint; tells of damaged ones."""
        assert self.folder is not None
        found, damaged = checkpoint.latest(self.folder.checkpoints)
        self.round = found.round if found else 0
        self.folder.cut_back(self.round)
        if found:
            tensors = found.tensors()
            for name, lane in self.lanes.items():
                own = {
                    key.removeprefix(f"{name}."): value
                    for key, value in tensors.items()
                    if key.startswith(f"{name}.")
                }
                lane.restore(own, found.facts[name])
        return damaged

    def _finish(self, folder: RunFolder) -> None:
        lane = self.lanes["method"]
        save_models(folder.path / "models", lane.fed, lane.method, lane.state)
        write_results(folder.path, lane.method.results(lane.state), self.problem.data)


def local_like(method: Method) -> Local:
    """Local-only training with the same step size and amount of work as a method."""
    shared = ("lr", "local_steps", "local_epochs")
    return Local(**{name: getattr(method, name) for name in shared if hasattr(method, name)})


def train(
    problem: Problem,
    method: Method | str,
    *,
    folder: str | Path | None = None,
    on_round: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Run:
    """Train one model per client and evaluate it on the client's own held-out data.

    `method` is a Method or its name; `settings` are those of `Settings` (rounds, seed,
    fraction, eval_every, engine, ...).
    """
    chosen = get_method(method)() if isinstance(method, str) else method
    kept = RunFolder.create(Path(folder), f'method = "{chosen.name}"\n') if folder else None
    return Trainer(problem, chosen, make_settings(settings), kept).run(on_round)


def make_settings(values: Mapping[str, Any]) -> Settings:
    """Settings by name; an unknown one is answered with the nearest."""
    names = [f.name for f in fields(Settings)]
    for name in values:
        if name not in names:
            raise unknown("setting", name, names)
    return Settings(**values)


def _whole(value: Any) -> Tensor:
    """A tensor read in full from a lazy slice of a file."""
    tensor: Tensor = value[:] if value.get_shape() else value[...]
    return tensor
