"""Options that a paper calls "tuned": chosen on validation data, before the runs that count."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

from fedkin.errors import DivergedError
from fedkin.papers.item import Line, Panel, slug
from fedkin.papers.measures import score_global
from fedkin.papers.outcome import prune
from fedkin.runs.comparison import Entry, execute
from fedkin.runs.config import make_config
from fedkin.runs.options import merge
from fedkin.tensors import write_text

CHOSEN = "tuned.json"
# of every client's training samples, in the runs that choose
HELD_BACK = 0.2
SEED = 1_000  # of no run that counts
MOST_ROUNDS = 250  # of such a run

Describe = Callable[..., str]


def tuned(
    panel: Panel, parent: Path, describe: Describe, on_round: Callable[[str], None],
    stop: threading.Event,
) -> Panel:  # fmt: skip
    """The panel with the values chosen for the lines that have some to choose from.

    Of each candidate there is one run, on clients that hold a fifth of their training samples
    back; chosen is the one whose global model is the most accurate on these, after 250 rounds at
    most. No test sample is looked at. What was chosen is kept in the panel's folder.
    """
    lines = []
    for line in panel.lines:
        lines.append(_choose(panel, line, parent, describe, on_round, stop) if line.tune else line)
    return replace(panel, lines=tuple(lines))


def choices(panel: Panel, parent: Path) -> dict[str, str]:
    """By line, what was chosen for it, as in `rho = 0.03`."""
    found = {}
    for line in panel.lines:
        place = _place(panel, line, parent)
        if line.tune and place.exists():
            told = json.loads(place.read_text("utf-8"))
            found[line.label] = f"{told['option']} = {told['value']:g}"
    return found


def _place(panel: Panel, line: Line, parent: Path) -> Path:
    return parent / panel.folder / slug(line.label) / CHOSEN


def _choose(
    panel: Panel, line: Line, parent: Path, describe: Describe, on_round: Callable[[str], None],
    stop: threading.Event,
) -> Line:  # fmt: skip
    place = _place(panel, line, parent)
    ((option, candidates),) = line.tune.items()
    if not place.exists():
        entries = [_entry(panel, line, option, value) for value in candidates]
        errors = execute(entries, parent, describe, on_round, stop)
        for error in errors.values():
            if not isinstance(error, DivergedError):
                raise error
        if stop.is_set():
            return line
        scores = [nan if str(entry.folder(parent)) in errors
                  else score_global(entry.folder(parent), "validation").accuracy
                  for entry in entries]  # fmt: skip
        best = max(range(len(scores)), key=lambda i: -1.0 if scores[i] != scores[i] else scores[i])
        found = {"option": option, "value": candidates[best],
                 "accuracy": dict(zip(map(str, candidates), scores, strict=True))}  # fmt: skip
        write_text(place, json.dumps(found, indent=1))
        for entry in entries:
            prune(entry.folder(parent))
    value = json.loads(place.read_text("utf-8"))["value"]
    return replace(line, options={**line.options, option: value}, tune={})


def _entry(panel: Panel, line: Line, option: str, value: float) -> Entry:
    own = {"method": line.method, "options": {**line.options, option: value}, "seed": SEED}
    held: dict[str, Any] = {"data": {"validation_fraction": HELD_BACK}}
    held["rounds"] = min(panel.rounds, MOST_ROUNDS)
    values = merge(merge(merge(dict(panel.run), dict(line.run)), held), own)
    label = f"{panel.folder}/{slug(line.label)}/tune-{option}={value:g}"
    return Entry(label, SEED, make_config(values, panel.title))
