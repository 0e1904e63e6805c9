"""What no run can want: years of rounds, more threads than libraries bear, waits of weeks.

On its own, as the command's help tells these numbers and imports nothing heavy.
"""

from __future__ import annotations

import os

MOST_ROUNDS, MOST_THREADS, LONGEST_WAIT = 10**7, max(256, os.cpu_count() or 1), 10.0**6
