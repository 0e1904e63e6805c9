"""
Comparison with report
======================

Three methods on the same clients, three seeds each, then a page with tables, figures and tests.
"""

import subprocess
import sys
from pathlib import Path

from fedkin.reports import write_report

# the command `fedkin compare local fedavg perm --seeds 3 ...`
methods = ["local", "fedavg", "perm"]
options = ["--seeds", "3", "--rounds", "40", "--lr", "0.1", "--out", "runs/example"]
command = [sys.executable, "-m", "fedkin", "compare", *methods, *options]
print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

# %%
# The report is one self-contained HTML page; ``fedkin report runs/example`` writes it too. Its
# figures lie beside it, as PNG, SVG and csv, ready for a paper.

found = write_report([Path("runs/example")], Path("comparison.html"))
for pair in found.pairs:
    more = 100 * pair.advantage.mean
    print(f"{pair.first} minus {pair.second}: {more:+.1f} points (p = {pair.p:.3f}, 3 seeds)")
