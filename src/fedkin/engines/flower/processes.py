"""Flower processes that we start: their ports, logs and how they end."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from fedkin.engines.flower.logs import LogFile, plain
from fedkin.errors import FedkinError

SCRIPTS = Path(__file__).parent / "scripts"
LINES = 500  # of a process's first and last lines that are kept in memory


def free_port() -> int:
    """A free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_free(host: str, port: int) -> None:
    """Raise if this address cannot be listened on."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise FedkinError(f"port {port} is in use: choose another with --port") from None
        raise FedkinError(f"cannot listen on {host}, port {port}: {error.strerror}") from None


class Child:
    """A Flower process that we started, with its output in a log file.

    `script` is one of those in the folder beside this file. Its lines are kept from the `least`
    level on, without colour codes.
    """

    def __init__(
        self, script: str, words: Sequence[object], home: Path, log: Path, least: str = "info"
    ) -> None:
        self.log, self._file = log, LogFile(log, least)
        self._first, self._last = list[str](), deque[str](maxlen=LINES)
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / script), str(os.getpid()), *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(home),
            start_new_session=True,  # Ctrl-C goes to us only: we end it when we are done
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True, name="log-reader")
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            line = plain(line)
            (self._first if len(self._first) < LINES else self._last).append(line)
            self._file.pass_on(line)

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def said(self) -> str:
        """What it has said: the first lines and the last, however many there were between."""
        return "\n".join([*self._first, *list(self._last)])

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.said().splitlines()[-lines:])

    def wait_for(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until it is ready, or fail with the end of its log."""
        until = time.monotonic() + seconds
        while not ready():
            if self.exit_code is not None or time.monotonic() > until:
                raise FedkinError(f"{what} did not start; its log {self.log} ends:\n"
                                  f"{self.last_words()}")  # fmt: skip
            time.sleep(0.05)

    def stop(self) -> None:
        """Terminate it; kill it after ten seconds."""
        if self.exit_code is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(5)
        self._file.close()


def environment(home: Path) -> dict[str, str]:
    """Environment for Flower: no telemetry, no update checks, none of the user's settings."""
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


def write_private(path: Path, content: bytes) -> None:
    """A file that only its owner can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
