"""Real processes on loopback: a server and three sites, from round to round by the clock."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.timing import Row
from fedkin.engines.flower.processes import free_port

TARGET_S = 3.0
SITES, ROUNDS, INPUTS = ("a", "b", "c"), 20, 784
CONFIG = """\
method = "{method}"
rounds = {rounds}
eval_every = {rounds}
baseline = false
[model]
name = "mlp:200,200"
batch_size = 20
[sites]
classes = 10
"""


def flower() -> list[Row]:
    """Seconds per round over Flower with three sites here and a model of 0.8 MB."""
    return [measured(method) for method in ("fedavg", "scaffold")]


def measured(method: str, rounds: int = ROUNDS) -> Row:
    """A whole run by `fedkin serve` and `fedkin join`, as docs/guides/flower.md shows it."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as processes:
        folder, port = Path(name), free_port()
        (folder / "config.toml").write_text(CONFIG.format(method=method, rounds=rounds))
        rng = np.random.default_rng(0)
        serve = ["serve", "config.toml", "--clients", len(SITES), "--port", port, "--out", "run"]
        server = processes.enter_context(running(folder, "server", serve))
        for site in SITES:
            x = rng.normal(size=(400, INPUTS)).astype(np.float32)
            np.savez(folder / f"{site}.npz", x=x, y=rng.integers(0, 10, 400))
            words = ["join", "--server", f"127.0.0.1:{port}", "--data", f"{site}.npz", "--yes"]
            processes.enter_context(running(folder, site, [*words, "--name", site]))
        ends = round_ends(server, folder / "run" / "metrics.csv", rounds)
        if server.wait() != 0:
            raise RuntimeError(f"the run failed: {(folder / 'server.log').read_text()}")
        size = (folder / "run" / "models" / "global.safetensors").stat().st_size / 1e6
    took = [later - earlier for earlier, later in pairwise(ends)]
    return {
        "method": method,
        "model_mb": size,
        "median_s": statistics.median(took),
        "worst_s": max(took),
        "target_s": TARGET_S,
        "load": os.getloadavg()[0],
    }


@contextmanager
def running(folder: Path, name: str, words: list[object]) -> Iterator[subprocess.Popen[bytes]]:
    """A fedkin command in a process of its own, with its output in a file."""
    command = [sys.executable, "-m", "fedkin", *map(str, words)]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def round_ends(server: subprocess.Popen[bytes], table: Path, rounds: int) -> list[float]:
    """When each round's row appeared; the time of two that are seen at once is shared."""
    ends: list[float] = []
    while len(ends) < rounds and server.poll() is None:
        seen = table.read_bytes().count(b"\n") - 1 if table.exists() else 0
        now = time.perf_counter()
        last = ends[-1] if ends else now
        new = seen - len(ends)
        ends += [last + (now - last) * (i + 1) / new for i in range(new)]
        time.sleep(0.01)
    return ends
