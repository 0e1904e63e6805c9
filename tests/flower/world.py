"""Sites and servers as real processes on loopback, each ended by whoever started it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.config import RunConfig
from fedkin.data.clients import ClientData, Examples
from fedkin.data.site import load_site
from fedkin.flower.conducting import ServedTrainer, conduct
from fedkin.flower.link import Link
from fedkin.flower.plan import read_serve_config
from fedkin.flower.post import Terms
from fedkin.flower.serving import prepare
from fedkin.training import Trainer

NAMES = ("clinic-a", "clinic-b", "clinic-c")
CONFIG = """
method = "{method}"
rounds = {rounds}
eval_every = {rounds}
baseline = {baseline}
[model]
name = "{model}"
batch_size = 10
[data]
name = "npz"
[sites]
classes = 3
[options]
{options}
"""


def write_data(folder: Path, names: Sequence[str] = NAMES, spread: float = 0.6) -> dict[str, Path]:
    """A file per site: three classes by a linear rule that differs a little between sites."""
    rng = np.random.default_rng(7)
    rule, files = rng.normal(size=(6, 3)), {}
    for i, name in enumerate(names):
        x = rng.normal(size=(80 + 20 * i, 6)).astype(np.float32)
        y = (x @ (rule + spread * rng.normal(size=rule.shape))).argmax(1)
        files[name] = folder / f"{name}.npz"
        np.savez(files[name], x=x, y=y)
    return files


def write_config(
    folder: Path, method: str, rounds: int, baseline: bool = False, model: str = "mlp:16",
    **options: Any,
) -> Path:  # fmt: skip
    lines = "\n".join(f"{key} = {value}" for key, value in options.items())
    path = folder / f"{method}.toml"
    path.write_text(
        CONFIG.format(
            method=method, rounds=rounds, baseline=str(baseline).lower(), model=model, options=lines
        )
    )
    return path


def embedded(config_path: Path, files: dict[str, Path]) -> Trainer:
    """The same run with all sites' data in this process."""
    config, agreement = read_serve_config(config_path)
    shared = config.data.model_dump(exclude_none=True)
    parts = [load_site(files[name], name, shared, agreement, config.seed) for name in sorted(files)]
    data = ClientData(
        Examples.of([part.train[0] for part in parts]),
        Examples.of([part.test[0] for part in parts]),
        parts[0].num_classes,
        names=tuple(sorted(files)),
    )
    trainer = Trainer(config.make_problem(data), config.make_method(), config.settings())
    trainer.run()
    return trainer


def run_over(
    link: Link, config_path: Path, out: Path, clients: int = 3, terms: Terms | None = None,
    registered: bool = False,
) -> tuple[ServedTrainer, list[str]]:  # fmt: skip
    """A whole run over the sites that are connected; the trainer, and what was said."""
    folder, said = prepare(config_path, clients, terms or Terms(1.0, 60), out), list[str]()
    config: RunConfig = read_serve_config(config_path)[0]
    with link.run() as grid:
        trainer = conduct(grid, folder, config, registered, 60, said.append)
        trainer.run()
    folder.close()
    return trainer, said


class Process:
    """A `fedkin` command (or a script), its output in a file."""

    def __init__(self, words: Sequence[object], log: Path, script: Path | None = None) -> None:
        run = [str(script)] if script else ["-c", "from fedkin.cli import main; main()"]
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *run, *map(str, words)],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                env={**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"},
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def says(self, words: str, seconds: float = 90) -> None:
        """Wait until it has said something."""
        until(lambda: words in self.text() or self.process.poll() is not None, seconds, self.text)
        assert words in self.text(), self.text()

    def ends(self, seconds: float = 90) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on after {seconds} s:\n{self.text()}") from None

    def kill(self) -> None:
        """Dead at once, and the Flower process it started with it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        numbers = children.read_text().split() if children.exists() else []
        for number in [self.process.pid, *map(int, numbers)]:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def site(folder: Path, name: str, data: Path, server: str, *more: object) -> Process:
    words = ["join", "--server", server, "--data", data, "--name", name]
    return Process([*words, "--home", folder / name, *more], folder / f"{name}.log")


def until(true: Callable[[], bool], seconds: float, about: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, about()
        time.sleep(0.05)


@contextmanager
def all_ended() -> Iterator[list[Process]]:
    """A list of processes that are killed at the end, whatever happens."""
    processes: list[Process] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


class Recorder:
    """A port that passes everything on to another and keeps a copy of what goes up."""

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self.target, self.up = (host, int(port)), bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        with near, socket.create_connection(self.target) as far:
            while True:
                ready, _, _ = select.select([near, far], [], [])
                for end in ready:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    if end is near:
                        self.up += data
                    (far if end is near else near).sendall(data)

    def close(self) -> None:
        self._listener.close()
