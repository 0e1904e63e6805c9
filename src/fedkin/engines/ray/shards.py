"""The driver's side: actors that hold shards of clients, and what happens when one is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
)

from fedkin.core.problem import Problem
from fedkin.core.steps import offering
from fedkin.data import ClientData
from fedkin.data.shards import Elsewhere, some_clients, without_examples
from fedkin.engines.ray.borders import borders, costs, measured_speeds
from fedkin.engines.ray.connection import RaySettings, connect
from fedkin.engines.ray.mistakes import OUT_OF_MEMORY, SHORT, cause, check_room
from fedkin.engines.ray.shard import Answer, Described, Shard, Work, versions
from fedkin.errors import FedkinError

# seconds between two tries to reach a shard that cannot be reached
PAUSE = 1.0
# an array below this size travels with the request; a larger one goes to the object store, once
INLINE = 100_000


class ShardLostError(FedkinError):
    """A shard is gone, and its clients' memory with it."""


class Shards:
    """The clients of a problem in actors, each with neighbours in the order of all clients.

    `reopen` holds what is done for every new actor: each contender's memory and strategy.
    """

    def __init__(
        self, source: Described | ClientData, settings: RaySettings, say: Callable[[str], None]
    ) -> None:
        self.source, self.settings, self.say = source, settings, say
        self.limit = settings.timeout
        self._joined = not ray.is_initialized()
        resources = connect(settings)
        self.cpus = max(1, int(resources.get("CPU", 1)))
        self.borders: list[int] = []
        self.actors: list[Any] = []
        self.dead: set[int] = set()
        self.seconds: list[float] = []
        self.starts = 0
        self.reopen: list[Callable[[int], None]] = []
        self._late: dict[int, tuple[Any, float]] = {}

    # beginning ---------------------------------------------------------------------------

    def describe(self) -> tuple[ClientData, str]:
        """What the driver must know of data that shards read: all but the examples; a checksum."""
        assert isinstance(self.source, Described)
        actor = self._new("fedkin reader", 1, 0.0)
        found: Elsewhere = self._once(actor.read.remote(self.source))
        ray.kill(actor)
        self.source = replace(self.source, known=found)
        return found.data, found.checksum

    def begin(self, problem: Problem) -> None:
        """Start the actors and let each take its clients."""
        count = self.settings.shards or min(self.cpus, problem.num_clients)
        self.cost = costs(problem.train.sizes)
        self.borders = borders(self.cost, [1.0] * count)
        check_room(problem.data)
        blank = without_examples(problem.data)
        self._problem = ray.put(problem.with_data(blank, "cpu"))
        self.actors = [None] * count
        self.seconds = [0.0] * count
        self._start(range(count))

    def _start(self, numbers: Sequence[int]) -> None:
        """New actors for these shards, with their clients; smaller ones where CPUs are scarce."""
        count, each = len(self.actors), max(1, self.cpus // len(self.actors))
        if len(numbers) < count:
            free = int(ray.available_resources().get("CPU", 0))
            each = max(1, min(each, free // max(1, len(numbers))))
        for k in numbers:
            name = f"fedkin shard {k + 1} of {count}"
            self.actors[k] = self._new(name, each, self.settings.gpus)
        for k in numbers:
            self._check(k)
        self._give(numbers)
        self.dead -= set(numbers)
        for k in numbers:
            self._late.pop(k, None)

    def _new(self, name: str, cpus: int, gpus: float) -> Any:
        kind = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0)(Shard)
        label = f"{name} ({time.time_ns() % 10**9})"
        return kind.options(name=label, scheduling_strategy="SPREAD").remote(cpus)

    def _check(self, k: int) -> None:
        there, here = self._once(self.actors[k].about.remote()), versions()
        for name, version in there.items():
            if version != here[name]:
                raise FedkinError(
                    f"shard {k + 1} has {name} {version}, this process {here[name]}: install the "
                    "same on every node of the cluster"
                )

    def _give(self, numbers: Sequence[int]) -> None:
        """Each shard takes its clients: from its own files, or from the object store."""
        modules = [name for name in offering() if name.startswith("fedkin.")]
        device = "cuda" if self.settings.gpus else "cpu"
        waiting = []
        for k in numbers:
            first, last = self.borders[k], self.borders[k + 1]
            part = self.source
            if isinstance(part, ClientData):
                part = some_clients(part, first, last)
            waiting.append(
                self.actors[k].take.remote(part, first, last, self._problem, device, modules)
            )
        for ref in waiting:
            self._once(ref)

    def rebalance(self) -> bool:
        """Move borders so that shards take equally long, by the time each has taken so far."""
        if len(self.actors) < 2:
            return False
        speeds = measured_speeds(self.cost, self.borders, self.seconds)
        if speeds is None:
            return False
        found = borders(self.cost, speeds)
        if found == self.borders:
            return False
        self.borders = found
        self._give(range(len(self.actors)))
        self.open_all(range(len(self.actors)))
        return True

    def open_all(self, numbers: Sequence[int]) -> None:
        """Every contender's engine at these shards, with empty memory."""
        self.starts += 1
        for k in numbers:
            for reopen in self.reopen:
                reopen(k)

    def revive(self) -> list[int]:
        """New actors in place of dead ones, wherever there is room; gives their numbers."""
        gone = sorted(self.dead)
        self._start(gone)
        self.open_all(gone)
        return gone

    def close(self) -> None:
        """End the shards, and leave the cluster if it was joined for them."""
        self.close_actors()
        if self._joined and ray.is_initialized():
            ray.shutdown()

    def close_actors(self) -> None:
        """End the shards."""
        for actor in self.actors:
            if actor is not None and ray.is_initialized():
                ray.kill(actor)
        self.actors = []

    # requests ----------------------------------------------------------------------------

    def put(self, arrays: dict[str, Any]) -> Any:
        """What all shards get: in the object store if it is large."""
        size = sum(value.nbytes for value in arrays.values())
        return ray.put(arrays) if size > INLINE else arrays

    def ask(self, work: dict[int, Work], shared: Any, steps: dict[str, Any]) -> dict[int, Answer]:
        """Answers of the shards that can be had; where losses are waited for, all or an error."""
        waits = self.settings.on_loss == "wait"
        if not waits:
            work = {k: one for k, one in work.items() if k not in self.dead and self._caught_up(k)}
        refs = {k: self.actors[k].work.remote(one, shared, steps) for k, one in work.items()}
        found: dict[int, Answer] = {}
        end = time.monotonic() + self.limit
        for k, one in work.items():
            answer = self._answer(k, refs[k], (one, shared, steps), end, waits)
            if answer is not None:
                found[k] = answer
                self.seconds[k] += answer.seconds if answer.gradients.any() else 0.0
        if self.dead and waits:
            raise self._lost()
        return found

    def _answer(
        self, k: int, ref: Any, asked: tuple[Any, ...], end: float, waits: bool
    ) -> Answer | None:
        """One shard's answer. One that cannot be reached is asked again until the time is over."""
        while True:
            try:
                answer: Answer = ray.get(ref, timeout=max(0.0, end - time.monotonic()))
                return answer
            except ActorUnavailableError:
                if not waits:
                    return None
                if time.monotonic() > end:
                    self._give_up(k)
                    return None
                time.sleep(PAUSE)
                ref = self.actors[k].work.remote(*asked)
            except GetTimeoutError:
                if waits:
                    self._give_up(k)
                    return None
                self._late.setdefault(k, (ref, time.monotonic()))
                return None
            except OutOfMemoryError:
                raise FedkinError(OUT_OF_MEMORY) from None
            except (ActorDiedError, RayActorError) as error:
                if SHORT in str(error):
                    raise FedkinError(OUT_OF_MEMORY) from None
                self.dead.add(k)
                return None
            except RayTaskError as error:
                raise cause(error) from None

    def _caught_up(self, k: int) -> bool:
        """Whether a shard that was late has done its work meanwhile; one that hangs is ended."""
        if k not in self._late:
            return True
        ref, since = self._late[k]
        if ray.wait([ref], timeout=0)[0]:
            del self._late[k]
            return True
        if time.monotonic() - since > self.limit:
            self._give_up(k)
        return False

    def _give_up(self, k: int) -> None:
        ray.kill(self.actors[k])
        self.dead.add(k)

    def call(self, k: int, name: str, *arguments: Any) -> Any:
        """What a shard answers to a call that is no request; if it is gone, that is known then."""
        try:
            return ray.get(getattr(self.actors[k], name).remote(*arguments), timeout=self.limit)
        except RayTaskError as error:
            raise cause(error) from None
        except (RayActorError, GetTimeoutError):
            self._give_up(k)
            raise self._lost() from None

    def _lost(self) -> ShardLostError:
        numbers = ", ".join(str(k + 1) for k in sorted(self.dead))
        return ShardLostError(f"shard {numbers} of {len(self.actors)} was lost")

    def _once(self, ref: Any) -> Any:
        """The result of a call that must succeed, with what went wrong as a sentence."""
        try:
            return ray.get(ref, timeout=self.limit)
        except GetTimeoutError:
            free = ray.available_resources()
            raise FedkinError(
                f"a shard did not start within {self.limit:g} seconds: the cluster has "
                f"{free.get('CPU', 0):g} CPUs and {free.get('memory', 0) / 1e9:.3g} GB free; wait "
                "for other jobs, or give fewer shards"
            ) from None
        except OutOfMemoryError:
            raise FedkinError(OUT_OF_MEMORY) from None
        except RayTaskError as error:
            raise cause(error) from None
        except RayActorError as error:
            text = " ".join(str(error).split())
            low = SHORT in text
            raise FedkinError(OUT_OF_MEMORY if low else f"a shard ended: {text[:300]}") from None
