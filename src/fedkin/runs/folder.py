"""The run folder: config.toml, metrics.csv, clients.csv, checkpoint/, models/, log.txt."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Self

import pandas as pd

from fedkin.errors import FedkinError
from fedkin.runs import contents
from fedkin.runs.parts import cut_parts, shorten
from fedkin.runs.reading import parts_of, read_json, read_table
from fedkin.tensors import sync, write_text

STRATEGY, LOCK = "strategy.json", ".lock"


def take_lock(folder: Path) -> IO[str]:
    """A lock on a folder, held until the file is closed or this process ends."""
    lock = (folder / LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FedkinError(
            f"another process is working in {folder}: wait for it to end, or stop it"
        ) from None
    return lock


class RunFolder:
    """A run's place on disk, used by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = take_lock(path)
        self._columns: dict[str, list[str]] = {}
        self._unsynced: set[Path] = set()

    @classmethod
    def create(cls, path: Path, config: str) -> RunFolder:
        """A new folder; an existing run is never overwritten."""
        if path.exists() and (not path.is_dir() or _has_content(path)):
            raise FedkinError(
                f"{path} already exists: choose another --out, "
                f"or continue it with `fedkin resume {path}`"
            )
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        try:
            write_text(path / "config.toml", config)
        except OSError:
            folder.discard()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        if not (path / "config.toml").is_file():
            raise FedkinError(f"{path} is not a run folder: it has no config.toml")
        return cls(path)

    def close(self) -> None:
        """Let others work here; also the end of a `with` block."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def discard(self) -> None:
        """Remove a folder in which nothing was written yet."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    @property
    def models(self) -> Path:
        return self.path / "models"

    def config(self) -> str:
        return (self.path / "config.toml").read_text(encoding="utf-8")

    def log(self, text: str) -> None:
        stamp = datetime.now().isoformat(timespec="seconds")
        with (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{stamp} {text}\n")

    # tables ----------------------------------------------------------------------------

    def append(self, name: str, table: Mapping[str, Sequence[Any]]) -> None:
        """Add rows, given by column, to a csv file.

        A new column is empty in earlier rows. Where the file is large, its rows go to a parquet
        file first.
        """
        path = self.path / name
        count = len(next(iter(table.values()), ()))
        if not count:
            return
        shorten(path)
        path.parent.mkdir(exist_ok=True)
        columns = self._header(name)
        if not set(table) <= set(columns):
            columns = self._columns[name] = list(dict.fromkeys([*columns, *table]))
            _set_header(path, columns)
        text, nothing = io.StringIO(), [None] * count
        whole = (table.get(column, nothing) for column in columns)
        csv.writer(text, lineterminator="\n").writerows(zip(*whole, strict=True))
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())
        self._unsynced.add(path)

    def _header(self, name: str) -> list[str]:
        path = self.path / name
        if name not in self._columns:
            self._columns[name] = []
            if path.exists():
                with path.open(encoding="utf-8", errors="replace", newline="") as file:
                    self._columns[name] = next(csv.reader(file), [])
        return self._columns[name]

    def sync(self) -> None:
        """Flush the tables to disk, so that a checkpoint is never ahead of them."""
        for path in self._unsynced:
            sync(path)
        self._unsynced.clear()

    def table(self, name: str) -> pd.DataFrame:
        """A table of this folder with its numbers as they were written."""
        return read_table(self.path / name, needs=("round",))

    def cut_back(self, last_round: int) -> None:
        """Drop rows of rounds after a checkpoint's, and a row cut short by a crash."""
        self._columns.clear()
        for path in [*self.path.glob("*.csv"), *self.path.glob("diagnostics/*.csv")]:
            cut_parts(path, last_round)
            rows = _rows_by_round(path)
            header, end = next(rows, (None, 0))
            if header is None:  # a table of results, which is written whole
                continue
            start = end
            for number, after in rows:
                if number is None or number > last_round:
                    break
                end = after
            if end == start and not parts_of(path):
                path.unlink()
            elif end < path.stat().st_size:
                os.truncate(path, end)

    # how the engine computed -------------------------------------------------------------

    def strategy(self) -> dict[str, Any]:
        """What `keep_strategy` saved; empty before that."""
        return read_strategy(self.path)

    def keep_strategy(self, facts: Mapping[str, Any]) -> None:
        """Save how the engine computes, so that a resumed run rounds in the same way."""
        write_text(self.path / STRATEGY, json.dumps(facts, indent=1, sort_keys=True) + "\n")


def read_strategy(folder: Path) -> dict[str, Any]:
    """How the engine computed in a run folder; empty if it was not saved."""
    try:
        found = read_json(folder / STRATEGY, contents.STRATEGY)
    except FileNotFoundError:
        return {}
    except FedkinError as error:
        raise FedkinError(
            f"{error}; remove the file and the engine will choose again how to compute, with the "
            "same results up to rounding"
        ) from None
    return found.model_dump(exclude_unset=True)


def next_folder(parent: Path, name: str) -> Path:
    """`parent/name-001` or the first number that is free."""
    number = 1
    while (parent / f"{name}-{number:03d}").exists():
        number += 1
    return parent / f"{name}-{number:03d}"


def _has_content(path: Path) -> bool:
    """Whether there is more than a process killed at its start would leave."""
    return any(child.name not in (LOCK, ".config.toml.tmp") for child in path.iterdir())


def _set_header(path: Path, columns: Sequence[str]) -> None:
    """Give a csv file these columns: its own, and more."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            next(rows, None)
            writer.writerows([*row, *[""] * (len(columns) - len(row))] for row in rows)
    write_text(path, text.getvalue())


def _rows_by_round(path: Path) -> Iterator[tuple[int | None, int]]:
    """Each whole row's round and where it ends in the file; the header first, as round 0.

    The round is None for a row that is damaged or cut short, and for the header of a table
    without rounds; nothing follows it.
    """
    end, whole = 0, True
    with path.open("rb") as file:

        def lines() -> Iterator[str]:
            nonlocal end, whole
            for line in file:
                end, whole = end + len(line), line.endswith(b"\n")
                yield line.decode("utf-8", "replace")

        reader, first = csv.reader(lines()), True
        while True:
            try:
                row = next(reader)
                number = 0 if first and row[0] == "round" else int(row[0])
            except StopIteration:
                return
            except (csv.Error, ValueError, IndexError):
                yield None, end
                return
            if not whole:
                yield None, end
                return
            yield number, end
            first = False
