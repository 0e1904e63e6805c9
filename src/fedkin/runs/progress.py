"""What a run tells after every round, and a progress bar where it runs in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from fedkin.runs.measures import ACCURACY, Measure


@dataclass(frozen=True)
class Progress:
    """After a round: its number, how many there will be, and every measure of it.

    `score` is the mean of the deciding metric, by `measure`, at the last evaluation. `measures`
    is the round's row of `metrics`: what was not evaluated in it is None.
    """

    round: int
    rounds: int
    score: float | None = None
    measure: Measure = ACCURACY
    measures: Mapping[str, Any] = field(default_factory=dict)


OnRound = Callable[[Progress], None]
# seconds between two drawings of a notebook's bar
PAUSE = 0.2


def in_notebook() -> bool:
    """Whether this runs in a kernel, whose output can be drawn over."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


def notebook_bar(title: str) -> OnRound:
    """A bar with the round and the accuracy so far, drawn over itself."""
    from IPython.display import HTML, display

    start, last = time.monotonic(), 0.0
    handle = display(HTML(_bar(title, Progress(0, 1), 0)), display_id=True)

    def show(done: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if done.round >= done.rounds or now - last >= PAUSE:
            last = now
            handle.update(HTML(_bar(title, done, now - start)))

    return show


def _bar(title: str, done: Progress, seconds: float) -> str:
    said = f"{done.round}/{done.rounds}, {seconds:.0f} s"
    if done.score is not None:
        shown = f"{done.score:.1%}" if done.measure.share else f"{done.score:.4g}"
        said += f", personal {escape(done.measure.title)} {shown}"
    return (
        f'<label>{escape(title)} <progress value="{done.round}" max="{done.rounds}"></progress> '
        f"{said}</label>"
    )


def followers(title: str, on_round: OnRound | None, progress: bool | None) -> OnRound | None:
    """The user's function and, in a notebook, a bar (`progress` says otherwise)."""
    bar = notebook_bar(title) if in_notebook() and progress is not False else None
    if bar is None or on_round is None:
        return on_round or bar

    def both(done: Progress) -> None:
        bar(done)
        on_round(done)

    return both
