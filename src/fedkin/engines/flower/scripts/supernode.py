"""`flower-supernode` behind a gate, which polls for messages more often than every three seconds.

Run as `python supernode.py PARENT POLL MOST SECRET ...` with flower-supernode's own arguments;
it polls at least every POLL seconds, takes requests of at most MOST bytes from programs that know
the SECRET, and ends with the process PARENT.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from backoff import Backoff  # type: ignore[import-not-found]
from flwr.supernode import main as node_api
from flwr.supernode.cli import flower_supernode
from gate import Gate, pass_word  # type: ignore[import-not-found]
from parent import end_with  # type: ignore[import-not-found]

SHORTEST = 0.02


class ShorterSleeps:
    """The module `time` for the SuperNode's loop, with shorter sleeps.

    The loop sleeps for seconds between polls for messages, and for less than one while it
    waits for the answer to a message it has received.
    """

    def __init__(self, longest: float) -> None:
        self.backoff = Backoff(SHORTEST, longest)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        if seconds < 1:
            self.backoff.over()
            time.sleep(SHORTEST)
        else:
            self.backoff.take()


def be_brisk(longest: float) -> None:
    """Shorten the SuperNode's pauses: between polls, and while pieces of a message arrive."""
    loop: Any = sys.modules["flwr.supernode.start_client_internal"]
    loop.time = ShorterSleeps(longest)
    loop.pull_objects = partial(loop.pull_objects, initial_backoff=SHORTEST, backoff_cap=longest)


def put_behind_gate(most: int, word: str) -> None:
    """Nobody but our own program speaks with the SuperNode's port, or fills its memory."""
    create: Any = node_api.create_app

    def create_app(*words: Any, **named: Any) -> Any:
        app = create(*words, **named)
        app.add_middleware(Gate, most=most, keys=None, word=word, fleet=False)
        return app

    node_api.create_app = create_app


def main() -> None:
    _, parent, poll, most, secret, *arguments = sys.argv
    end_with(int(parent))
    be_brisk(float(poll))
    put_behind_gate(int(most), pass_word(Path(secret)))
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


if __name__ == "__main__":
    main()
