"""Memory that steps free and the next ones need again."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

# numbers of glibc's mallopt, and bytes: pieces up to the first come from the heap, of which the
# second may be free at its end before any goes back to the system
TRIM, MMAP = -1, -3
LARGEST_PIECE, LARGEST_REST = 1 << 25, 1 << 28


@cache
def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step.

    Otherwise it returns the large pieces to the system, which hands them out again page by page
    and filled with zeros: a tenth of a round. Where there is no glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP, LARGEST_PIECE)
        mallopt(TRIM, LARGEST_REST)
