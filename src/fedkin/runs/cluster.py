"""Runs on a Ray cluster: the same training, with clients in shards that may be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from fedkin.core.problem import Problem
from fedkin.data import ClientData
from fedkin.engines.ray.connection import RaySettings
from fedkin.engines.ray.engine import RayEngine
from fedkin.engines.ray.shard import Described
from fedkin.engines.ray.shards import ShardLostError, Shards
from fedkin.errors import FedkinError
from fedkin.runs import checkpoint
from fedkin.runs.config import RunConfig
from fedkin.runs.contender import Contender, restore_contenders, save_contenders, under
from fedkin.runs.folder import RunFolder
from fedkin.runs.provenance import resolved_data
from fedkin.runs.settings import Settings, parse_size
from fedkin.tensors import Chunked

Say = Callable[[str], None]
# losses in a row, without a round between them, after which a run gives up
MOST_LOSSES = 5


def ray_settings(settings: Settings) -> RaySettings:
    """The settings that say how Ray is used."""
    s = settings
    return RaySettings(s.ray_address, s.shards, s.ray_timeout, s.on_loss, s.gpus_per_shard)


class Training(Protocol):
    """What a cluster needs of the trainer whose clients it holds."""

    folder: RunFolder | None
    settings: Settings
    round: int
    contenders: dict[str, Contender]

    def step(self) -> None: ...

    def make_contenders(self) -> dict[str, Contender]: ...

    def resume(self) -> list[str]: ...


class Cluster:
    """The shards of a run, and what happens when one is lost.

    With `on_loss = "wait"` a shard that is lost is started again elsewhere and the run goes
    back to its last checkpoint: it ends as if nothing had happened. With `"skip"` the
    clients of a lost shard are lost rows until it is there again, with the memory they had
    at the last checkpoint.
    """

    def __init__(
        self, shards: Shards, problem: Problem, settings: Settings, folder: RunFolder | None
    ) -> None:
        self.shards, self.settings = shards, settings
        self._planned = folder.strategy() if folder else {}
        self._losses, self._balanced = 0, False
        self._kept: dict[str, Any] = {}
        shards.begin(problem)

    def engine_for(self, name: str) -> RayEngine:
        """A contender's engine."""
        s = self.settings
        return RayEngine(
            self.shards, name, s.strategy, s.block_size, parse_size(s.memory),
            self._planned.get(name, ()),
        )  # fmt: skip

    def step(self, trainer: Training) -> None:
        """One round; if a shard is lost, the run goes back instead."""
        if trainer.round == 0 and not self._kept:
            self._keep_in_memory(trainer)
        self.ready(trainer)
        try:
            trainer.step()
        except ShardLostError as error:
            self._losses += 1
            if self._losses > MOST_LOSSES:
                raise FedkinError(
                    f"{error}, {self._losses} times in a row: see whether its node has enough "
                    "memory and what its log says"
                ) from None
            if self.settings.on_loss == "wait":
                self._go_back(trainer, str(error))
            return
        self._losses = 0
        if not self._balanced and not self.shards.dead and trainer.round < self.settings.rounds:
            self._balance(trainer)
        if trainer.round % self.settings.checkpoint_every == 0:
            self._keep_in_memory(trainer)

    def ready(self, trainer: Training) -> None:
        """All shards are there, those that were lost with the memory of the last checkpoint."""
        if self.shards.dead:
            self._revive(trainer)

    def close(self) -> None:
        """End the shards, and the Ray that was started for them."""
        self.shards.close()

    # losses --------------------------------------------------------------------------------

    def _note(self, trainer: Training, sentence: str) -> None:
        self.shards.say(sentence)
        if trainer.folder:
            trainer.folder.log(sentence)

    def _go_back(self, trainer: Training, reason: str) -> None:
        """Start lost shards again and return to the last checkpoint, or to the beginning."""
        self.shards.revive()
        if trainer.folder:
            self.shards.reopen.clear()
            trainer.contenders = trainer.make_contenders()
            trainer.resume()
        else:
            self._recall(trainer)
        self._note(trainer, f"{reason}: started again, going on after round {trainer.round}")

    def _revive(self, trainer: Training) -> None:
        """Start lost shards again with the memory of the last checkpoint (`on_loss = "skip"`)."""
        revived = self.shards.revive()
        found = checkpoint.latest(trainer.folder.checkpoints)[0] if trainer.folder else None
        tensors = found.tensors() if found else self._kept.get("tensors", {})
        for name, contender in trainer.contenders.items():
            engine = contender.fed.engine
            assert isinstance(engine, RayEngine)
            engine.memory.restore(under(f"{name}.memory.", tensors), revived)
        numbers = ", ".join(str(k + 1) for k in revived)
        self._note(
            trainer,
            f"shard {numbers} was lost and takes part again from round {trainer.round + 1} on",
        )

    def _balance(self, trainer: Training) -> None:
        """After the first round: shards that take equally long."""
        self._balanced = True
        engines = {name: contender.fed.engine for name, contender in trainer.contenders.items()}
        state = {name: _whole(e.memory.state()) for name, e in engines.items()}  # type: ignore[attr-defined]
        if self.shards.rebalance():
            for name, engine in engines.items():
                engine.memory.restore(state[name])  # type: ignore[attr-defined]

    # a run without a folder keeps its checkpoint here ---------------------------------------

    def _keep_in_memory(self, trainer: Training) -> None:
        if trainer.folder:
            return
        tensors, numbers = save_contenders(trainer.contenders)
        kept = {name: value.clone() for name, value in _whole(tensors).items()}
        tables = {name: len(getattr(trainer, name)) for name in ("metrics", "timing", "clients")}
        self._kept = {"round": trainer.round, "tensors": kept, "numbers": numbers, "tables": tables}

    def _recall(self, trainer: Training) -> None:
        restore_contenders(trainer.contenders, self._kept["tensors"], self._kept["numbers"])
        trainer.round = self._kept["round"]
        for name, length in self._kept["tables"].items():
            del getattr(trainer, name)[length:]


def _whole(tensors: Any) -> Any:
    """Tables in memory; those that come in pieces are joined."""
    return {
        name: torch.cat(list(value.pieces)) if isinstance(value, Chunked) else value
        for name, value in tensors.items()
    }


def described(config: RunConfig, say: Say) -> tuple[Shards, ClientData, str]:
    """Shards that will read a config's data, the data without examples, and their checksum."""
    source = Described(resolved_data(config.data), config.seed)
    shards = Shards(source, ray_settings(config.settings()), say)
    try:
        return (shards, *shards.describe())
    except BaseException:
        shards.close()
        raise


def in_memory(problem: Problem, settings: Settings) -> Shards:
    """Shards that are sent the data of a problem that is here."""
    return Shards(problem.data, ray_settings(settings), lambda sentence: None)
