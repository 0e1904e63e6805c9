"""More state than memory: personal models that live in files, under a resident limit.

`python -m bench.state WORDS...` runs `fedkin WORDS...` and says how much memory was
resident at most, on its last line.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMIT_GB = 1.5
WIDTH, INPUTS = 16_667, 10


def state(clients: int = 5_000, width: int = WIDTH, memory: str = "500MB") -> list[dict[str, Any]]:
    """A run whose clients' models take 4 GB, and the same run resumed from its checkpoint."""
    parameters = width * (INPUTS + 2) + 1
    data = ("--data", "linear", "--num-clients", clients, "--samples", 10, "--dim", INPUTS)
    work = ("--model", f"mlp:{width}", "--local-steps", 1, "--batch-size", 5, "--lr", 0.001)
    plan = ("--rounds", 2, "--eval-every", 2, "--checkpoint-every", 1, "--no-baseline")
    place = Path("runs")  # not where temporary files are, which may be memory
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        run = Path(folder).resolve() / "run"
        begin = ("run", "apfl", "--out", run, *data, *work, *plan, "--memory", memory, "-q")
        rows = [{"what": "run", **measured(*begin)}]
        shutil.rmtree(run / "models")  # which a resumed run writes anew, from its checkpoint
        rows.append({"what": "resume", **measured("resume", run, "-q")})
    size = clients * parameters * 4 / 1e9
    return [{"clients": clients, "state_gb": size, "limit_gb": LIMIT_GB, **row} for row in rows]


def measured(*words: object) -> dict[str, float]:
    """Peak resident memory and time of a fedkin command in a process of its own."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "bench.state", *map(str, words)]
    root = Path(__file__).parent.parent
    ended = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {ended.stderr}")
    peak = json.loads(ended.stdout.splitlines()[-1])
    return {"peak_gb": peak, "seconds": time.perf_counter() - start}


def peak_gb() -> float:
    """The most memory that was resident in this process at any time."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e9
    raise RuntimeError("this system does not tell the peak of resident memory")


if __name__ == "__main__":
    from fedkin.command.cli import main

    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    print(json.dumps(peak_gb()))
