"""The run folder: config.toml, metrics.csv, clients.csv, checkpoint/, models/, log.txt."""

from __future__ import annotations

import csv
import fcntl
import io
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from fedkin.errors import FedkinError
from fedkin.tensors import write_text


class RunFolder:
    """A run's place on disk, used by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = self._take_lock()

    @classmethod
    def create(cls, path: Path, config: str) -> RunFolder:
        """A new folder; an existing run is never overwritten."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FedkinError(
                f"{path} already exists: choose another --out, "
                f"or continue it with `fedkin resume {path}`"
            )
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        write_text(path / "config.toml", config)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        if not (path / "config.toml").is_file():
            raise FedkinError(f"{path} is not a run folder: it has no config.toml")
        return cls(path)

    def _take_lock(self) -> IO[str]:
        lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FedkinError(
                f"another process is working in {self.path}: wait for it to end, or stop it"
            ) from None
        return lock

    def close(self) -> None:
        self._lock.close()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    def config(self) -> str:
        return (self.path / "config.toml").read_text(encoding="utf-8")

    def log(self, text: str) -> None:
        stamp = datetime.now().isoformat(timespec="seconds")
        with (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{stamp} {text}\n")

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to a csv file; its columns are those of the first row ever written."""
        path = self.path / name
        rows = list(rows)
        if not rows:
            return
        path.parent.mkdir(exist_ok=True)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n", extrasaction="ignore")
        if not path.exists():
            writer.writeheader()
        writer.writerows(rows)
        with path.open("a", encoding="utf-8") as file:
            file.write(text.getvalue())

    def cut_back(self, last_round: int) -> None:
        """Drop csv rows of rounds after a checkpoint's, and a line cut short by a crash."""
        for path in [*self.path.glob("*.csv"), *self.path.glob("diagnostics/*.csv")]:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            if not lines or not lines[0].startswith("round,"):
                continue
            kept = [lines[0]] + [
                line
                for line in lines[1:]
                if line.endswith("\n") and int(line.partition(",")[0]) <= last_round
            ]
            if kept != lines:
                write_text(path, "".join(kept)) if len(kept) > 1 else path.unlink()


def next_folder(parent: Path, name: str) -> Path:
    """`parent/name-001` or the first number that is free."""
    number = 1
    while (parent / f"{name}-{number:03d}").exists():
        number += 1
    return parent / f"{name}-{number:03d}"
