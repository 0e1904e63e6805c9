"""`flower-supernode` that looks for messages more often than every three seconds.

Run as `python -P supernode.py PARENT POLL ...` with flower-supernode's own
arguments; it ends with the process PARENT.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supernode.cli import flower_supernode


class Brisk:
    """The module `time`, except that nobody sleeps longer than `longest` seconds."""

    def __init__(self, longest: float) -> None:
        self.longest = longest

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self.longest))


def main() -> None:
    _, parent, poll, *arguments = sys.argv
    start_parent_process_monitor(int(parent))
    sys.modules["flwr.supernode.start_client_internal"].time = Brisk(float(poll))  # type: ignore[attr-defined]
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


if __name__ == "__main__":
    main()
