"""Comparisons in several processes: each method's runs in one of its own, a few at a time.

What passes between them is text: the plan of the runs goes in as json, rounds done and errors
come out as lines of json. A worker whose master is gone ends with its next line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from fedkin.comparison import DONE, Entry, execute, from_rows, to_rows
from fedkin.errors import DivergedError, FedkinError

# seconds between two words of a worker about its rounds
SILENCE = 0.25


def execute_in_processes(
    entries: Sequence[Entry],
    parent: Path,
    on_round: Callable[[str], None],
    stop: threading.Event,
    jobs: int,
) -> dict[str, BaseException]:
    """As `comparison.execute`, for `jobs` methods at a time."""
    todo = [entry for entry in entries if not (entry.folder(parent) / DONE).exists()]
    left = list(dict.fromkeys(entry.config.method for entry in todo))
    said: SimpleQueue[tuple[str, dict[str, Any] | None]] = SimpleQueue()
    working: dict[str, subprocess.Popen[str]] = {}
    errors: dict[str, BaseException] = {}
    try:
        while left or working:
            while left and len(working) < jobs and not stop.is_set():
                method = left.pop(0)
                rows = to_rows([e for e in todo if e.config.method == method])
                working[method] = _start(method, {"parent": str(parent), "rows": rows}, jobs, said)
            if stop.is_set():
                left.clear()
                _signal(working, signal.SIGINT)
            if not working:
                break
            method, news = said.get()
            if news is None:
                code = working.pop(method).wait()
                if code:
                    errors[str(parent / method)] = FedkinError(
                        f"the process with the runs of {method} ended early (code {code}); what "
                        "they had saved is kept, and the rest can be run again"
                    )
                continue
            for label, count in news.get("rounds", {}).items():
                for _ in range(count):
                    on_round(label)
            for place, (kind, text) in news.get("errors", {}).items():
                errors[place] = DivergedError(text) if kind == "diverged" else FedkinError(text)
    finally:
        _signal(working, signal.SIGKILL)
    return errors


def _start(
    method: str, work: Mapping[str, Any], jobs: int, said: SimpleQueue[Any]
) -> subprocess.Popen[str]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    worker = subprocess.Popen(
        [sys.executable, "-m", "fedkin.workers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(work))
    worker.stdin.close()

    def listen() -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            said.put((method, json.loads(line)))
        said.put((method, None))

    threading.Thread(target=listen, daemon=True).start()
    return worker


def _signal(working: Mapping[str, subprocess.Popen[str]], number: signal.Signals) -> None:
    for worker in working.values():
        worker.send_signal(number)


# in a worker ---------------------------------------------------------------------------------


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """Counts rounds by label and says now and then how many there were."""
    counts: Counter[str] = Counter()
    last = time.monotonic()

    def say() -> None:
        nonlocal last
        print(json.dumps({"rounds": counts}), flush=True)
        counts.clear()
        last = time.monotonic()

    def tell(label: str) -> None:
        counts[label] += 1
        if time.monotonic() - last > SILENCE:
            say()

    yield tell
    say()


def work() -> None:
    """Run what stands on stdin."""
    # imported here: commands need comparisons, which need workers
    from fedkin.commands import complete

    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    asked = json.loads(sys.stdin.read())
    with _telling() as tell:
        found = execute(from_rows(asked["rows"]), Path(asked["parent"]), complete, tell, stop)
    errors = {}
    for place, error in found.items():
        if not isinstance(error, FedkinError):
            raise error
        kind = "diverged" if isinstance(error, DivergedError) else "mistake"
        errors[place] = (kind, str(error))
    print(json.dumps({"errors": errors}), flush=True)


if __name__ == "__main__":
    work()
