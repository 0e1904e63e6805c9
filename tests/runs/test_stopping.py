"""Signals as an event."""

import subprocess
import sys

STORM = """
import os, signal, subprocess, sys, threading
from fedkin.runs.stopping import sets

stop = threading.Event()
signal.signal(signal.SIGINT, sets(stop))
storm = "import os, signal\\nfor _ in range(20000): os.kill(%d, signal.SIGINT)" % os.getpid()
sender = subprocess.Popen([sys.executable, "-c", storm])
while sender.poll() is None:
    pass
print(stop.is_set())
"""


def test_a_storm_of_signals_sets_the_event_and_blocks_nothing() -> None:
    said = subprocess.run(
        [sys.executable, "-c", STORM], capture_output=True, text=True, timeout=120, check=True
    )
    assert said.stdout == "True\n"
