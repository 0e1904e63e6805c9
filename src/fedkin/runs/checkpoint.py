"""Checkpoints: written atomically, checked when read, the last two kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.runs import contents
from fedkin.runs.contents import CheckpointFacts
from fedkin.runs.reading import read_json
from fedkin.runs.validation import validated
from fedkin.tensors import Chunked, Stored, open_tensors, sha256, sync, write_tensors

KEEP = 2
TENSORS, FACTS = "tensors.safetensors", "facts.json"


@dataclass(frozen=True)
class Checkpoint:
    """A run after some round: named tensors (read lazily) and facts."""

    round: int
    path: Path
    facts: dict[str, Any]

    def stated(self) -> CheckpointFacts:
        """What a run has kept beside its tensors."""
        return validated(CheckpointFacts, self.facts, f"{self.path / FACTS}")

    def tensors(self) -> dict[str, Stored]:
        """All tensors by name, each read from the file when sliced."""
        return open_tensors(self.path / TENSORS)


def save(folder: Path, number: int, tensors: Mapping[str, Tensor | Chunked], facts: Any) -> None:
    """Write the checkpoint of a round into its own folder, which appears only when complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".writing-*"):
        shutil.rmtree(leftover)
    final, work = folder / f"round-{number:08d}", folder / f".writing-{number:08d}"
    work.mkdir()
    try:
        digest = write_tensors(work / TENSORS, tensors)
        body = {"round": number, "sha256": digest, "facts": facts}
        (work / FACTS).write_text(json.dumps({**body, "own_sha256": _digest(body)}), "utf-8")
        for path in (work / TENSORS, work / FACTS, work):
            sync(path)
        if final.exists():  # a damaged one: a valid one is never written twice
            shutil.rmtree(final)
        work.rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sync(folder)
    prune(folder, number)


def prune(folder: Path, number: int) -> None:
    """Keep the last two up to a round; later ones are damaged and were skipped."""
    everything, last = sorted(folder.glob("round-*")), f"round-{number:08d}"
    kept = [path for path in everything if path.name <= last][-KEEP:]
    for path in set(everything) - set(kept):
        shutil.rmtree(path)


def latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest valid checkpoint, and a sentence about every damaged one that was skipped."""
    damaged: list[str] = []
    for path in sorted(folder.glob("round-*"), reverse=True):
        try:
            return _read(path), damaged
        except FedkinError as error:
            damaged.append(str(error))
    return None, damaged


def _read(path: Path) -> Checkpoint:
    try:
        body = read_json(path / FACTS, contents.CHECKPOINT).model_dump()
        own = body.pop("own_sha256")
    except OSError as error:
        raise FedkinError(f"checkpoint {path} is damaged: {FACTS}: {error.strerror}") from None
    except FedkinError as error:
        raise FedkinError(f"checkpoint {path} is damaged: {FACTS}: {error}") from None
    if own != _digest(body):
        raise FedkinError(f"checkpoint {path} is damaged: {FACTS} was changed")
    try:
        found = sha256(path / TENSORS)
    except OSError as error:
        raise FedkinError(f"checkpoint {path} is damaged: {TENSORS}: {error.strerror}") from None
    if found != body["sha256"]:
        raise FedkinError(f"checkpoint {path} is damaged: {TENSORS} was changed or cut")
    return Checkpoint(body["round"], path, body["facts"])


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
