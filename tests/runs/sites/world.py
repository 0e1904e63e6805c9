"""Sites and servers as real processes on loopback, each ended by whoever started it."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedkin import __version__
from fedkin.command.cli import main
from fedkin.data.clients import ClientData, Examples
from fedkin.data.site import load_site
from fedkin.engines.flower.exchange import WaitPolicy
from fedkin.engines.flower.link import Link
from fedkin.runs.config import RunConfig
from fedkin.runs.sites.plan import read_serve_config
from fedkin.runs.sites.served import ServedTrainer, make_trainer
from fedkin.runs.sites.serving import Wanted, prepare
from fedkin.runs.training import Trainer

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.runs.sites.faulty_site", "tests.runs.sites.world"])

NAMES = ("clinic-a", "clinic-b", "clinic-c")
PATIENCE = 1200  # seconds until what does not happen is told; no machine is so slow
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


def write_data(folder: Path, names: Sequence[str] = NAMES, more: int = 0) -> dict[str, Path]:
    """A file per site: three classes by a linear rule that differs a little between sites."""
    rng = np.random.default_rng(7)
    rule, files = rng.normal(size=(6, 3)), {}
    for i, name in enumerate(names):
        x = rng.normal(size=(80 + 20 * i + more, 6)).astype(np.float32)
        y = (x @ (rule + 0.6 * rng.normal(size=rule.shape))).argmax(1)
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


def card(name: str, **changes: Any) -> dict[str, Any]:
    """What a site tells of itself, for tests that need no site."""
    return {
        "name": name, "identity": name, "fedkin": __version__, "train": 5, "test": 2,
        "validation": None, "shape": [4], "target": [], "num_classes": 3, "parameters": 15,
        **changes,
    }  # fmt: skip


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
    link: Link, config_path: Path, out: Path, clients: int = 3, waiting: WaitPolicy | None = None,
    registered: bool = False,
) -> tuple[ServedTrainer, list[str]]:  # fmt: skip
    """A whole run over the sites that are connected; the trainer, and what was said."""
    said: list[str] = []
    folder = prepare(Wanted(config_path, clients, waiting or WaitPolicy(1.0, 60), out))
    config: RunConfig = read_serve_config(config_path)[0]
    with link.run() as grid:
        trainer = make_trainer(grid, folder, config, registered, 60, said.append)
        trainer.run()
    folder.close()
    return trainer, said


class Process:
    """A real process of its own, forked from one that has torch imported; output in a file."""

    def __init__(self, work: Callable[..., None], words: Sequence[object], log: Path) -> None:
        self.log = log
        log.touch()
        self.process = CONTEXT.Process(target=_live, args=(work, [str(w) for w in words], log))
        self.process.start()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def says(self, words: str) -> None:
        """Wait until it has said something."""
        until(lambda: words in self.text() or not self.process.is_alive(), self.text)
        assert words in self.text(), self.text()

    def ends(self) -> int | None:
        """Its exit code, negative for a signal."""
        self.process.join(PATIENCE)
        assert not self.process.is_alive(), f"it goes on after {PATIENCE} s:\n{self.text()}"
        return self.process.exitcode

    def children(self) -> list[int]:
        """The Flower process it started."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(number) for number in path.read_text().split()] if path.exists() else []

    def send(self, number: int) -> None:
        """A signal to it alone."""
        os.kill(self.process.pid or 0, number)

    def kill(self) -> None:
        """Dead at once, and the Flower process it started with it."""
        numbers = self.children()
        self.process.kill()
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.join()


def _live(work: Callable[..., None], words: list[str], log: Path) -> None:
    """What the new process does."""
    with log.open("ab", buffering=0) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(log.parent)
    try:
        work(words)
    finally:
        sys.stdout.flush()


def fedkin(words: list[str]) -> None:
    """The command as a user starts it."""
    sys.argv = ["fedkin", *words]
    main()


def site(folder: Path, name: str, data: Path, server: str, *more: object) -> Process:
    words = ["join", "--server", server, "--data", data, "--name", name, "--yes"]
    return Process(fedkin, [*words, "--home", folder / name, *more], folder / f"{name}.log")


def until(true: Callable[[], bool], about: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
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


def digits(number: float) -> bytes:
    """A number as any text has it: one decimal more than the times in Flower's headers have."""
    return f"{number:.12f}"[:-5].encode()


class Recorder:
    """A port that passes everything on to another and keeps a copy of what goes up."""

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self.target, self._streams = (host, int(port)), list[bytearray]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def up(self) -> bytes:
        """All that was sent, connection by connection."""
        return b"\n".join(self._streams)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        self._streams.append(sent := bytearray())
        with near, suppress(OSError), socket.create_connection(self.target) as far:
            while True:
                ready, _, _ = select.select([near, far], [], [])
                for end in ready:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    if end is near:
                        sent += data
                    (far if end is near else near).sendall(data)

    def close(self) -> None:
        self._listener.close()
