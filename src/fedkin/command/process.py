"""The process of a command: quick to start and to end."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Around imports of torch and what stands on it: they leave no garbage to look for.

    Looking takes a fifth of their time. What they make stays for good: it is never looked at again.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run_and_end(command: Callable[[], None]) -> None:
    """Run a command and end the process, as soon as all that ends with it has been told.

    Taking apart what torch has imported, which Python does otherwise, takes half a second.
    """
    code: object = 0
    try:
        command()
    except SystemExit as end:
        code = end.code or 0
    if not isinstance(code, int) or threading.active_count() > 1:
        sys.exit(code)  # type: ignore[arg-type]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
