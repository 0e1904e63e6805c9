"""Growing pauses between polls."""

from __future__ import annotations

import time


class Backoff:
    """The longer nothing has happened, the longer the pause: a tenth of that time.

    So an event is noticed soon, and idle polling costs little.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        self.shortest, self.longest = shortest, longest
        self._since = time.monotonic()

    def over(self) -> None:
        """Something has happened."""
        self._since = time.monotonic()

    def take(self) -> None:
        idle = time.monotonic() - self._since
        time.sleep(min(self.longest, max(self.shortest, idle / 10)))
