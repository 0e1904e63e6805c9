"""`flower-superlink` behind a gate.

Flower serves three APIs on one port: Fleet (for sites, protected by their keys), Control
(start and stop runs, register keys: open to anybody) and Runtime (for apps). Only programs that
know this start's secret get through to the last two; to the first, where a file of keys is
given, only sites whose key is in it. No request may bring more than `most` bytes.

Run as `python superlink.py PARENT MOST KEYS SECRET ...` with flower-superlink's own arguments
(KEYS is the file, or `-`); it ends with the process PARENT.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from gate import Gate, KeyList, pass_word  # type: ignore[import-not-found]  # beside this script
from parent import end_with  # type: ignore[import-not-found]
from starlette.middleware import Middleware


def main() -> None:
    _, parent, most, file, secret, *arguments = sys.argv
    end_with(int(parent))
    keys = None if file == "-" else KeyList(Path(file))
    word = pass_word(Path(secret))
    extensions.get_middleware = lambda: (Middleware(Gate, most=int(most), keys=keys, word=word),)
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


if __name__ == "__main__":
    main()
