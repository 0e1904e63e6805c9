"""Text from other machines, made fit to be shown: one line, no control codes, not too long."""

from __future__ import annotations

from typing import Any

MOST = 300


def shown(text: Any, most: int = MOST) -> str:
    """What a site or a server said, with everything that is not plain print escaped, and cut.

    Terminals act on escape codes, and a line break would begin a line of its own in a log.
    """
    words = text if isinstance(text, str) else f"{text!r:.{most}}"
    safe = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in words[: most + 1]
    )
    return safe if len(words) <= most and len(safe) <= most else f"{safe[:most]}..."
