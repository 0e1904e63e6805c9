"""Several runs at once: one progress bar, and Ctrl-C that lets them save."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedkin.command.screen import progress
from fedkin.runs.progress import Progress
from fedkin.runs.stopping import sets


@contextmanager
def watched(
    title: str, total: int, quiet: bool = False
) -> Iterator[tuple[Callable[[str], None], threading.Event]]:
    """A progress bar over the rounds of all runs, and Ctrl-C as an event that ends them."""
    done, stop = 0, threading.Event()
    before = signal.signal(signal.SIGINT, sets(stop))
    try:
        with progress(title, 0, max(total, 1), quiet) as show:

            def advance(label: str) -> None:
                nonlocal done
                done += 1
                show(Progress(done, total))

            yield advance, stop
    finally:
        signal.signal(signal.SIGINT, before)
