"""Signals that ask work to end, as an event that other threads can see."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


def sets(stop: threading.Event) -> Callable[[int, FrameType | None], None]:
    """A handler that sets `stop` at the first signal and ignores the others.

    Python runs a handler inside a handler: a second signal that came within `stop.set()` would
    wait for ever for the lock that the first one holds.
    """

    def handle(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        stop.set()

    return handle
