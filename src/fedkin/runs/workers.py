"""Comparisons in several processes: each method's runs in one of its own, a few at a time.

If there are more processes than methods, the runs of a method are split over several.

They communicate by text: a worker reads its list of runs as json from stdin, and writes finished
rounds and errors as lines of json. A worker whose parent has ended stops at its next line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from fedkin.errors import DivergedError, FedkinError
from fedkin.runs.comparison import Entry, execute, from_rows, to_rows
from fedkin.runs.provenance import complete
from fedkin.runs.stopping import sets
from fedkin.runs.tasks import DONE

# seconds between two progress messages of a worker
SILENCE = 0.25

# Ctrl-C while a worker still imports must not crash it: the parent signals again
BEGIN = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from fedkin.runs.workers import work; work()"
)


def execute_in_processes(
    entries: Sequence[Entry],
    parent: Path,
    on_round: Callable[[str], None],
    stop: threading.Event,
    jobs: int,
    trackers: Sequence[str] = (),
) -> dict[str, BaseException]:
    """As `comparison.execute`, in `jobs` processes at a time."""
    left = shares([e for e in entries if not (e.folder(parent) / DONE).exists()], jobs)
    said: SimpleQueue[tuple[str, dict[str, Any] | None]] = SimpleQueue()
    working: dict[str, subprocess.Popen[str]] = {}
    errors: dict[str, BaseException] = {}
    try:
        while left or working:
            while left and len(working) < jobs and not stop.is_set():
                name = next(iter(left))
                rows = to_rows(left.pop(name))
                asked = {"parent": str(parent), "rows": rows, "trackers": list(trackers)}
                working[name] = _start(name, asked, jobs, said)
            if stop.is_set():
                left.clear()
                _signal(working, signal.SIGINT)
            if not working:
                break
            name, news = said.get()
            if news is None:
                code = working.pop(name).wait()
                if code:
                    errors[str(parent / name)] = FedkinError(
                        f"the process with the runs of {name} ended early (code {code}); what "
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


def shares(entries: Sequence[Entry], jobs: int) -> dict[str, list[Entry]]:
    """The runs of each process, by name: all runs of a method, or every n-th of them."""
    methods = dict.fromkeys(entry.config.method for entry in entries)
    found = {}
    for method in methods:
        own = [entry for entry in entries if entry.config.method == method]
        parts = min(len(own), -(-jobs // len(methods)))
        for part in range(parts):
            name = method if parts == 1 else f"{method}, part {part + 1} of {parts}"
            found[name] = own[part::parts]
    return found


def _start(
    name: str, work: Mapping[str, Any], jobs: int, said: SimpleQueue[Any]
) -> subprocess.Popen[str]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    worker = subprocess.Popen(
        [sys.executable, "-c", BEGIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(work))
    worker.stdin.close()

    def listen() -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            said.put((name, json.loads(line)))
        said.put((name, None))

    threading.Thread(target=listen, daemon=True).start()
    return worker


def _signal(working: Mapping[str, subprocess.Popen[str]], number: signal.Signals) -> None:
    for worker in working.values():
        worker.send_signal(number)


# in a worker ---------------------------------------------------------------------------------


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """Counts rounds by label and reports the counts from time to time."""
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
    """Run the list of runs given on stdin."""
    stop = threading.Event()
    signal.signal(signal.SIGINT, sets(stop))
    warnings.showwarning = lambda message, *_: print(f"note: {message}", file=sys.stderr)
    asked = json.loads(sys.stdin.read())
    with _telling() as tell:
        runs, parent = from_rows(asked["rows"]), Path(asked["parent"])
        found = execute(runs, parent, complete, tell, stop, asked["trackers"])
    errors = {}
    for place, error in found.items():
        if not isinstance(error, FedkinError):
            raise error
        kind = "diverged" if isinstance(error, DivergedError) else "mistake"
        errors[place] = (kind, str(error))
    print(json.dumps({"errors": errors}), flush=True)
