"""Comparisons on a Ray cluster: lines and seeds spread over its nodes.

A node computes its runs as one process would, in a folder of its own, and sends the files
back when they are done; nothing else is needed there, no shared disk.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from fedkin.engines.ray.connection import connect
from fedkin.engines.ray.shard import versions
from fedkin.errors import DivergedError, FedkinError
from fedkin.runs.cluster import ray_settings
from fedkin.runs.comparison import Entry, execute, from_rows, rounds_of, to_rows
from fedkin.runs.provenance import complete, resolved_data
from fedkin.runs.tasks import DONE
from fedkin.runs.workers import shares
from fedkin.tensors import write_bytes

# seconds between two looks whether the user wants to stop
LOOK = 0.5


def execute_on_cluster(
    entries: Sequence[Entry],
    parent: Path,
    on_round: Callable[[str], None],
    stop: threading.Event,
    trackers: Sequence[str] = (),
) -> dict[str, BaseException]:
    """As `comparison.execute`, on the cluster that the runs' settings name.

    Trackers are told by the nodes; files of theirs in a run folder come back with it.
    """
    left = [entry for entry in entries if not (entry.folder(parent) / DONE).exists()]
    if not left:
        return {}
    joined = not ray.is_initialized()
    resources = connect(ray_settings(left[0].config.settings()))
    errors: dict[str, BaseException] = {}
    task = ray.remote(num_cpus=1, max_retries=2)(run_share)
    parts = shares(left, max(1, int(resources.get("CPU", 1))))
    waiting = {}
    for name, own in parts.items():
        rows = to_rows([_here(entry) for entry in own])
        named = task.options(name=f"fedkin {name}")
        waiting[named.remote(rows, versions(), tuple(trackers))] = (name, own)
    try:
        while waiting and not stop.is_set():
            ready, _ = ray.wait(list(waiting), timeout=LOOK)
            for ref in ready:
                name, own = waiting.pop(ref)
                try:
                    files, found = ray.get(ref)
                except RayError as error:
                    errors[str(parent / name)] = _sentence(name, error)
                    continue
                _write(files, parent)
                for place, (kind, text) in found.items():
                    mistake = DivergedError if kind == "diverged" else FedkinError
                    errors[str(parent / place)] = mistake(text)
                for entry in own:
                    for _ in range(rounds_of(entry.config)):
                        on_round(entry.label)
        for ref in waiting:
            ray.cancel(ref, force=True)
    finally:
        if joined:
            ray.shutdown()
    return errors


def run_share(
    rows: Sequence[Mapping[str, Any]], expected: Mapping[str, str], trackers: Sequence[str]
) -> tuple[dict[str, bytes], dict[str, tuple[str, str]]]:
    """On a node: some runs of a comparison; their files by name, and what went wrong."""
    if versions() != expected:
        raise FedkinError(
            f"a node of the cluster has {versions()}, the comparison was started with "
            f"{dict(expected)}: install the same on every node"
        )
    with tempfile.TemporaryDirectory(prefix="fedkin-") as place:
        parent = Path(place)
        never = threading.Event()
        failed = execute(from_rows(rows), parent, complete, lambda _: None, never, trackers)
        errors = {}
        for folder, error in failed.items():
            if not isinstance(error, FedkinError):
                raise error
            kind = "diverged" if isinstance(error, DivergedError) else "mistake"
            errors[str(Path(folder).relative_to(parent))] = (kind, str(error))
        paths = [path for path in sorted(parent.rglob("*")) if path.is_file()]
        return {str(p.relative_to(parent)): p.read_bytes() for p in paths}, errors


def _here(entry: Entry) -> Entry:
    """A run as a node computes it: in its own process, with data found from any folder."""
    over = {"engine": "embedded", "data": resolved_data(entry.config.data)}
    return Entry(entry.label, entry.seed, entry.config.model_copy(update=over))


def _write(files: Mapping[str, bytes], parent: Path) -> None:
    """What a node sent, below our folder; the mark of a finished run last."""
    for name in sorted(files, key=lambda name: (Path(name).name == DONE, name)):
        path = parent / name
        if not path.resolve().is_relative_to(parent.resolve()):
            raise FedkinError(f"a node sent a file for a place outside {parent}: {name[:200]!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, files[name])


def _sentence(name: str, error: RayError) -> BaseException:
    cause = error.cause if isinstance(error, RayTaskError) else None
    if isinstance(cause, FedkinError):
        return FedkinError(str(cause))
    if cause is not None:
        return error
    return FedkinError(
        f"the node with the runs of {name} was lost; the rest is kept, and these can be run again"
    )
