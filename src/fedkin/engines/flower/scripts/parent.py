"""A process that does not outlive the one that started it."""

from __future__ import annotations

import os
import signal
import threading
import time

GRACE = 5.0  # seconds to disconnect from others


def end_with(parent: int) -> None:
    """When the parent has ended, terminate; if that does not work, exit immediately."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()
