"""What a site remembers between requests: one file, replaced atomically.

The memory after a request and the answer to it are written together. A request that arrives
twice gets the same answer again; one older than the last is refused. The memory before each
of the last rounds is kept, so that a server that resumes from its checkpoint finds every
site in the state of that round.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedkin.core.memory import Memory
from fedkin.engines.messages import pack, unpack
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError
from fedkin.tensors import write_bytes

ROUNDS_KEPT = 3
BEFORE = "before-{:08d}.safetensors"


class RequestPosition(NamedTuple):
    """When a request was made: the server's start, the round, the request and row in it."""

    start: int
    round: int
    call: int
    row: int


BEGINNING = RequestPosition(0, -1, 0, 0)


class SiteMemory(Memory):
    """What one client remembers, a row under each name."""

    def __init__(self) -> None:
        super().__init__(1)
        self.rows: dict[str, Tensor] = {}

    def read(self, name: str, clients: Tensor, default: Tensor) -> Tensor:
        return self.rows[name].to(default.device) if name in self.rows else default

    def write(self, name: str, clients: Tensor, rows: Tensor) -> None:
        self.rows[name] = rows.detach().cpu().clone()


@dataclass(frozen=True)
class Remembered:
    """The file's content: memory and answer after a request, and how often memory advanced."""

    place: RequestPosition = BEGINNING
    rows: dict[str, Tensor] | None = None
    answer: Message = ({}, {})
    advances: int = 0
    forgotten: int = -1  # the last round whose beginning is no longer kept

    def pack(self) -> bytes:
        reply, facts = self.answer
        tensors = {f"memory.{name}": row for name, row in (self.rows or {}).items()}
        tensors |= {f"answer.{name}": value for name, value in reply.items()}
        return pack(
            tensors,
            place=self.place,
            answer=facts,
            advances=self.advances,
            forgotten=self.forgotten,
        )

    @classmethod
    def unpack(cls, content: bytes) -> Remembered:
        tensors, facts = unpack(content)
        parts: dict[str, dict[str, Tensor]] = {"memory": {}, "answer": {}}
        for key, value in tensors.items():
            part, _, name = key.partition(".")
            parts[part][name] = value
        return cls(
            RequestPosition(*facts["place"]),
            parts["memory"],
            (parts["answer"], facts["answer"]),
            facts["advances"],
            facts["forgotten"],
        )


class Store:
    """One client's memory in one experiment."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "now.safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            self._write(Remembered())

    def now(self) -> Remembered:
        return _read(self.path)

    def answer(
        self, place: RequestPosition, memory: SiteMemory, work: Callable[[], Message]
    ) -> Message:
        """The result of `work` with the memory of this position; computed once, then kept."""
        now = self.now()
        if place == now.place:
            return now.answer
        if place.start < now.place.start or (place.start == now.place.start and place < now.place):
            raise FedkinError(f"the request {tuple(place)} is older than {tuple(now.place)}")
        if place.round == 0 < now.place.round:  # a restarted server asks again
            memory.rows = dict(now.rows or {})
            return work()
        if place.start > now.place.start and place.round <= now.place.round:
            now = self._back_to(place.round, now)
        if place.round > now.place.round:
            now = self._keep_beginning(place.round, now)
        memory.rows = dict(now.rows or {})
        answer = work()
        self._write(replace(now, place=place, rows=memory.rows, answer=answer,
                            advances=now.advances + 1))  # fmt: skip
        for number, path in self._beginnings().items():
            if number <= now.forgotten:
                path.unlink()
        return answer

    # rounds' beginnings ---------------------------------------------------------------

    def _beginnings(self) -> dict[int, Path]:
        found = sorted(self.folder.glob("before-*.safetensors"))
        return {int(path.stem.removeprefix("before-")): path for path in found}

    def _keep_beginning(self, number: int, now: Remembered) -> Remembered:
        """Before the first request of a round, the file as it is gets a second name."""
        temporary = self.folder / ".before.tmp"
        temporary.unlink(missing_ok=True)
        os.link(self.path, temporary)
        temporary.replace(self.folder / BEFORE.format(number))
        too_old = list(self._beginnings())[:-ROUNDS_KEPT]
        return replace(now, forgotten=max([now.forgotten, *too_old]))

    def _back_to(self, number: int, now: Remembered) -> Remembered:
        """The memory at the beginning of a round (or of the first one since with a request)."""
        if number <= now.forgotten:
            raise FedkinError(
                f"round {number} was requested again, but this site's memory only goes back to "
                f"round {now.forgotten + 1}"
            )
        later = {n: path for n, path in self._beginnings().items() if n >= number}
        first = min(later)
        then = replace(_read(later[first]), forgotten=now.forgotten)
        self._write(then)
        for path in later.values():
            path.unlink()
        return then

    def _write(self, remembered: Remembered) -> None:
        write_bytes(self.path, remembered.pack())


def _read(path: Path) -> Remembered:
    try:
        return Remembered.unpack(path.read_bytes())
    except FedkinError as error:
        raise FedkinError(f"{path} is damaged: {error}") from None
