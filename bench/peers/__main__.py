"""python -m bench.peers: the same tasks in Fedkin and in other frameworks, in turn.

Each framework gets an environment of its own, made here when it is first needed. What cannot be
installed is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.peers.task import STARTED, TASKS, Task

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# what is installed for each; Fedkin itself runs in the present environment
PEERS = {
    "flower": ["flwr[simulation]==1.41.0", "torch"],
    "pfl": ["pfl[pytorch]==0.6.0", "torch"],
    "fedjax": ["fedjax==0.0.17"],
    "blazefl": ["torch", "tqdm", "numpy"],
}
# BlazeFL asks for Python 3.12, of which there is no CPU build of torch here; 3.11 reads it as well.
# It comes by itself: whatever else is installed must still be for this Python
ANY_PYTHON = {"blazefl": ["--no-deps", "--ignore-requires-python", "blazefl==2.0.3"]}
LONGEST = 1800  # seconds that one run may take


def environment(name: str, home: Path) -> Path | str:
    """The interpreter of a framework's environment, made if there is none; or why not."""
    if name == "fedkin":
        return Path(sys.executable)
    python = home / name / "bin" / "python"
    if (home / name / "ready").exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", home / name], check=True)
    pip: list[str | Path] = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines()
              if line.startswith(("torch==", "torch @"))]  # fmt: skip
    limits = home / name / "constraints.txt"
    limits.write_text("\n".join(pinned) + "\n")
    for wanted in (PEERS[name], ANY_PYTHON.get(name)):
        if wanted is None:
            continue
        made = subprocess.run([*pip, "-c", limits, *wanted], capture_output=True, text=True)
        if made.returncode:
            return str((made.stderr.strip().splitlines() or ["pip failed"])[-1])
    (home / name / "ready").touch()
    return python


def measured(name: str, python: Path, folder: Path, rounds: int) -> dict[str, Any] | str:
    """One process of a framework on a task; or why it failed."""
    paths = [str(HERE)] + ([str(ROOT / "src")] if name == "fedkin" else [])
    facts = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "FLWR_TELEMETRY_ENABLED": "0"}
    facts[STARTED] = str(time.time())
    command: list[str | Path] = [python, HERE / f"run_{name}.py", folder, str(rounds)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=LONGEST, env=facts, cwd=folder
        )
    except subprocess.TimeoutExpired:
        return f"took more than {LONGEST} s"
    for line in ended.stdout.splitlines():
        if line.startswith("RESULT "):
            found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return found
    return str((ended.stderr.strip().splitlines() or ["no result"])[-1])


def compare(task: Task, pythons: dict[str, Path], rounds: int, times: int) -> None:
    """A task in every framework, in turn, several times; one row for each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task.write(folder)
        found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in pythons}
        for _ in range(times):
            for peer, python in pythons.items():
                one = measured(peer, python, folder, rounds)
                if isinstance(one, str):
                    print(f"{task.name:>8} {peer:>8}  failed: {one}", flush=True)
                else:
                    found[peer].append(one)
    for peer, all_ in found.items():
        if all_:
            took = statistics.median(s for one in all_ for s in one["rounds"])
            first = statistics.median(one["first"] for one in all_)
            peak = max(one["peak_mb"] for one in all_)
            print(f"{task.name:>8} {peer:>8} {all_[0]['version']:>8} {took:12.4f} s/round "
                  f"{first:8.2f} s to the first {peak:8.0f} MB", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("peers", nargs="*", help=f"which of {', '.join(PEERS)} (default: all)")
    parser.add_argument("--only", help="one task by its name")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--times", type=int, default=3, help="processes of each framework")
    parser.add_argument("--home", type=Path, default=Path(".peers"), help="their environments")
    options = parser.parse_args()
    pythons = {}
    for name in ("fedkin", *(options.peers or PEERS)):
        python = environment(name, options.home.resolve())
        if isinstance(python, str):
            print(f"{name} is left out: {python}", flush=True)
        else:
            pythons[name] = python
    for task in TASKS:
        if options.only in (None, task.name):
            compare(task, pythons, options.rounds, options.times)


if __name__ == "__main__":
    main()
