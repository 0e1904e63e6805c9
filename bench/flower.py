"""Real processes on loopback: a server and its sites, from round to round by the clock."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.timing import Row
from fedkin.engines.flower.processes import free_port
from fedkin.errors import FedkinError

TARGET_S, TARGET_GB = 3.0, 3.0
ROUNDS, INPUTS = 20, 784
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


def flower(only: str | None = None) -> Iterator[Row]:
    """Seconds per round over Flower and memory of all processes, with a model of 0.8 MB: three
    sites in processes of their own, then 20 and 200 in one (`fedkin join --sites`). --only 20
    measures that number of sites."""
    for sites, rounds in ((3, ROUNDS), (20, ROUNDS), (200, 5)):
        for method in ("fedavg", "scaffold"):
            if only in (None, str(sites)):
                yield measured(method, sites, rounds, together=sites > 3)


def measured(method: str, sites: int, rounds: int = ROUNDS, together: bool = False) -> Row:
    """A whole run by `fedkin serve` and `fedkin join`, as docs/guides/flower.md shows it."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as processes:
        folder, port = Path(name), free_port()
        (folder / "config.toml").write_text(CONFIG.format(method=method, rounds=rounds))
        rng = np.random.default_rng(0)
        serve = ["serve", "config.toml", "--clients", sites, "--port", port, "--out", "run"]
        server = processes.enter_context(running(folder, "server", serve))
        (folder / "data").mkdir()
        for i in range(sites):
            x = rng.normal(size=(400, INPUTS)).astype(np.float32)
            np.savez(folder / "data" / f"s{i:03d}.npz", x=x, y=rng.integers(0, 10, 400))
        join: list[object] = ["join", "--server", f"127.0.0.1:{port}", "--yes"]
        ways: list[list[object]] = [["--name", "machine", "--sites", "data"]]
        if not together:
            files = sorted((folder / "data").iterdir())
            ways = [["--name", path.stem, "--data", path] for path in files]
        for way in ways:
            words = [*join, *way]
            processes.enter_context(running(folder, str(way[1]), words))
        with memory_of_children() as peak:
            ends = round_ends(server, folder / "run" / "metrics.csv", rounds)
            if server.wait() != 0:
                raise FedkinError(f"the run failed: {(folder / 'server.log').read_text().strip()}")
        size = (folder / "run" / "models" / "global.safetensors").stat().st_size / 1e6
    took = [later - earlier for earlier, later in pairwise(ends)]
    return {
        "method": method,
        "sites": sites,
        "processes": 2 + 2 * len(ways),
        "model_mb": size,
        "median_s": statistics.median(took),
        "worst_s": max(took),
        "target_s": TARGET_S,
        "gb": peak[0] / 1e9,
        "target_gb": TARGET_GB,
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


@contextmanager
def memory_of_children() -> Iterator[list[float]]:
    """The most bytes that all processes below this one have had together, once the block ends.

    Memory that several share is counted once (proportional set size).
    """
    peak, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            peak[0] = max(peak[0], sum(map(own_memory, descendants(os.getpid()))))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def descendants(parent: int) -> list[int]:
    """The processes that a process started, and those they started."""
    found = []
    with suppress(OSError):  # it may end meanwhile
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def own_memory(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


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
