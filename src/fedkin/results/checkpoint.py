"""Checkpoints: written whole or not at all, checked when read, the last two kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.tensors import Chunked, open_tensors, sha256, write_tensors

KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """A run after some round: named tensors (read when asked for) and plain facts."""

    round: int
    path: Path
    facts: dict[str, Any]

    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors by name; large ones are sliced from the file piece by piece."""
        file = open_tensors(self.path / "tensors.safetensors")
        return {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118


def save(folder: Path, number: int, tensors: Mapping[str, Tensor | Chunked], facts: Any) -> None:
    """Write the checkpoint of a round into a folder of its own that appears complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".writing-*"):
        shutil.rmtree(leftover)
    final, work = folder / f"round-{number:08d}", folder / f".writing-{number:08d}"
    work.mkdir()
    try:
        digest = write_tensors(work / "tensors.safetensors", tensors)
        body = {"round": number, "sha256": digest, "facts": facts}
        text = json.dumps({**body, "own_sha256": _digest(body)})
        with (work / "facts.json").open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if final.exists():
            shutil.rmtree(final)
        work.rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _sync(folder)
    for old in sorted(folder.glob("round-*"))[:-KEEP]:
        shutil.rmtree(old)


def latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest sound checkpoint, and a sentence about every damaged one that was passed over."""
    damaged: list[str] = []
    for path in sorted(folder.glob("round-*"), reverse=True):
        try:
            return _read(path), damaged
        except FedkinError as error:
            damaged.append(str(error))
    return None, damaged


def _read(path: Path) -> Checkpoint:
    try:
        body = json.loads((path / "facts.json").read_text(encoding="utf-8"))
        own = body.pop("own_sha256")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise FedkinError(f"checkpoint {path} is damaged: facts.json: {error}") from None
    if own != _digest(body):
        raise FedkinError(f"checkpoint {path} is damaged: facts.json was changed")
    tensors = path / "tensors.safetensors"
    if not tensors.exists() or sha256(tensors) != body["sha256"]:
        raise FedkinError(f"checkpoint {path} is damaged: tensors.safetensors was changed or cut")
    return Checkpoint(body["round"], path, body["facts"])


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
