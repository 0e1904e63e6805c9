"""A site's own record: the runs it agreed to, how often it was asked, and what ended a run."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedkin.runs.reading import read_json
from fedkin.tensors import write_text

AGREEMENT = TypeAdapter(dict[str, Any])
AGREED, ASKED, ENDED, RUNS = "agreed.json", "asked", "ended.txt", "agreements.jsonl"


class Ledger:
    """Files in a site's home. `agreements.jsonl` only grows; the rest is per experiment."""

    def __init__(self, home: Path) -> None:
        self.home, self.memory = home, home / "memory"

    def place(self, experiment: str) -> Path:
        return self.memory / experiment

    # agreements ------------------------------------------------------------------------

    def agreed(self, experiment: str) -> dict[str, Any] | None:
        """What was agreed to for an experiment: the announcement, in words, the limits."""
        try:
            return read_json(self.place(experiment) / AGREED, AGREEMENT)
        except FileNotFoundError:
            return None

    def agree(self, experiment: str, server: str, words: list[str], **facts: Any) -> None:
        """Keep what was agreed to, before the first answer."""
        at = datetime.now().isoformat(timespec="seconds")
        self.place(experiment).mkdir(parents=True, exist_ok=True)
        with (self.home / RUNS).open("a", encoding="utf-8") as file:
            line = {"at": at, "experiment": experiment, "server": server, "words": words}
            file.write(json.dumps(line) + "\n")
        record = {"at": at, "server": server, "words": words, **facts}
        write_text(self.place(experiment) / AGREED, json.dumps(record, indent=1))

    @property
    def runs(self) -> int:
        """How many runs were agreed to in all."""
        try:
            return (self.home / RUNS).read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    # requests --------------------------------------------------------------------------

    def asked(self, experiment: str) -> int:
        """Count a request; gives how many there were."""
        with (self.place(experiment) / ASKED).open("ab") as file:
            file.write(b".")  # the file's size is the count: nothing to read, nothing to tear
            return file.tell()

    def end(self, experiment: str, reason: str) -> None:
        """No more requests of this experiment are answered."""
        if experiment and self.place(experiment).is_dir():
            write_text(self.place(experiment) / ENDED, reason + "\n")

    def ended(self, experiment: str) -> str | None:
        """Why an experiment was ended here; None if it was not."""
        try:
            return (self.place(experiment) / ENDED).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None

    # age -------------------------------------------------------------------------------

    def forget_older(self, days: float) -> list[str]:
        """Remove the memory of runs in which nothing has happened for so long."""
        gone, now = [], time.time()
        for folder in sorted(self.memory.glob("*/")):
            newest = max((os.stat(path).st_mtime for path in folder.rglob("*")), default=now)
            if now - newest > days * 86400:
                shutil.rmtree(folder)
                gone.append(folder.name)
        return gone
