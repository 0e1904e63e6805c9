"""A long life: memory, speed and files of a run over thousands of rounds."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fedkin.core.problem import Problem
from fedkin.data import DataConfig, load
from fedkin.models import build
from fedkin.runs.progress import Progress
from fedkin.runs.train import train

ROUNDS, CLIENTS, EVERY = 2_000, 1_000, 100


def long(rounds: int = ROUNDS, clients: int = CLIENTS, every: int = EVERY) -> list[dict[str, Any]]:
    """2,000 rounds of 1,000 clients: resident memory against that after 100 rounds, the processor's
    time of a round against that of the first hundred, and the folder's size."""
    torch.set_num_threads(1)
    data = load(DataConfig(name="crowd", num_clients=clients, samples=12, dim=10), 0)
    problem = Problem(build("logistic", (10,), 10), data)
    rows: list[dict[str, Any]] = []
    times: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        run, last = Path(place) / "run", time.process_time()

        def noted(done: Progress) -> None:
            nonlocal last
            now = time.process_time()  # other processes may want the machine, too
            times.append(now - last)
            if done.round % every == 0:
                gc.collect()
                rows.append({
                    "round": done.round, "resident_mb": resident_mb(),
                    "round_ms": 1e3 * statistics.median(times[-every:]), "folder_mb": size_mb(run),
                })  # fmt: skip
            last = time.process_time()

        train(problem, "scaffold", folder=run, rounds=rounds, lr=0.05, local_steps=2,
              fraction=0.1, eval_every=every, checkpoint_every=10, on_round=noted)  # fmt: skip
    first = rows[0]
    for row in rows:
        row["memory_ratio"] = row["resident_mb"] / first["resident_mb"]
        row["time_ratio"] = row["round_ms"] / first["round_ms"]
    return rows


def resident_mb() -> float:
    """Memory of this process that is resident now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
