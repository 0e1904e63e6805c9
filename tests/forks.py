"""Real processes that run the `fedkin` command without waiting for torch to be imported.

`Forks` starts one Python that has everything imported; each command runs in a fork of it,
a process of its own that can be killed like any other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ended:
    """How a command ended; the code is negative for a signal. `peak` is its resident memory.

    Seconds are of the processor: how long it took besides is a matter of what else is running.
    """

    code: int
    out: str
    err: str
    seconds: float
    peak: int


class Forks:
    """Runs commands, one at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def run(
        self,
        *words: object,
        after: float | None = None,
        when_exists: Path | None = None,
        signal: int = signal.SIGKILL,
        die: str | None = None,
    ) -> Ended:
        """Run `fedkin WORDS`.

        It gets a signal `after` seconds of work, or as soon as a file exists; or it kills itself
        at a moment that `die` names: `fsync:3` (instead of the third flush to disk) or `half:2`
        (in the middle of writing the second checkpoint's tensors).
        """
        request = {
            "words": [str(word) for word in words],
            "after": after,
            "when_exists": str(when_exists) if when_exists else None,
            "signal": int(signal),
            "die": die,
        }
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return Ended(**json.loads(self._server.stdout.readline()))

    def close(self) -> None:
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait()


def serve() -> None:
    # what forks need: imported once here, and not again in each of them
    import fedkin.command.compare
    import fedkin.command.runs
    import fedkin.reports.latex
    import fedkin.reports.write  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if child == 0:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                live(request)
            answer: dict[str, Any] = watch(child, request)
            for name, file in (("out", out), ("err", err)):
                file.seek(0)
                answer[name] = file.read()
        print(json.dumps(answer), flush=True)


def live(request: dict[str, Any]) -> None:
    """The child: the command as a user starts it."""
    from fedkin.command.cli import main

    code: Any = 1
    try:
        sys.argv = ["fedkin", *request["words"]]
        if request["die"]:
            plan_death(*request["die"].split(":"))
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def plan_death(moment: str, count: str) -> None:
    from fedkin.runs import checkpoint

    left = int(count)

    def nearer() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    real_sync, real_write = os.fsync, checkpoint.write_tensors

    def fsync(file: int) -> None:
        if nearer():
            die()
        real_sync(file)

    def half(path: Path, *rest: Any) -> str:
        digest = real_write(path, *rest)
        if nearer():
            os.truncate(path, path.stat().st_size // 2)
            die()
        return digest

    if moment == "fsync":
        os.fsync = fsync  # type: ignore[assignment]
    else:
        checkpoint.write_tensors = half  # type: ignore[assignment]


def worked(process: int) -> float:
    """Processor seconds of a process so far."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def watch(child: int, request: dict[str, Any]) -> dict[str, float]:
    """Wait for the child's end, signalling it when it is time; how it ended."""
    due: Callable[[], bool] | None = None
    if request["after"] is not None:
        due = lambda: worked(child) >= request["after"]  # noqa: E731
    elif request["when_exists"]:
        due = Path(request["when_exists"]).exists
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG if due else 0)
        if ended:
            return {
                "code": os.waitstatus_to_exitcode(status), "peak": 1024 * usage.ru_maxrss,
                "seconds": usage.ru_utime + usage.ru_stime,
            }  # fmt: skip
        if due and due():
            os.kill(child, request["signal"])
            due = None
        time.sleep(0.001)


if __name__ == "__main__":
    serve()
