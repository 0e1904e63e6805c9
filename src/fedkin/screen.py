"""What people see while and after a run: progress and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fedkin.training import Progress as RoundDone

console = Console()


def say(text: str) -> None:
    """A line exactly as it is: never wrapped, so that commands in it can be copied."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


class RateColumn(ProgressColumn):
    """Rounds per second, worked out when the bar is drawn and not in every round."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} rounds/s" if task.speed else "")


@contextmanager
def progress(
    title: str, start: int, total: int, quiet: bool
) -> Iterator[Callable[[RoundDone], None]]:
    """A progress bar with rounds per second, time left and the present personal accuracy."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[accuracy]}"),
    )
    with Progress(*columns, console=console, disable=quiet, transient=True) as bar:
        task = bar.add_task(title, total=total, completed=start, accuracy="")

        def advance(done: RoundDone) -> None:
            shown = "" if done.accuracy is None else f"personal accuracy {done.accuracy:.1%}"
            bar.update(task, completed=done.round, accuracy=shown)

        yield advance


def percent(value: Any) -> str:
    """A share as people read it; a dash where it is not known."""
    return "-" if value is None or value != value else f"{value:.1%}"


def plain_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int | None = None
) -> Table:
    """A table in which nothing is cut off: what does not fit goes on in the next line.

    Columns from `numbers_from` on hold numbers, which are aligned to the right.
    """
    table = Table()
    for place, title in enumerate(titles):
        number = numbers_from is not None and place >= numbers_from
        table.add_column(title, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def result_table(rows: Iterable[Mapping[str, float | str | None]]) -> Table:
    """One row per method: personal accuracy, gain over going alone, cost."""
    titles = ("method", "mean", "worst 10%", "best", "better than alone", "MB up", "MB down", "s")
    cells = [
        [
            str(row["method"]),
            *(percent(row[key]) for key in ("mean", "worst", "best", "better")),
            *(f"{row[key] or 0:.2f}" for key in ("mb_up", "mb_down", "seconds")),
        ]
        for row in rows
    ]
    return plain_table(titles, cells, numbers_from=1)


CAPACITY_WORDS = (
    "mean: personal accuracy; gap: train minus test accuracy; MB: a client's traffic in a round; "
    "MFLOP, ms and peak MB: of one step of training"
)


def capacity_table(levels: Iterable[Mapping[str, Any]]) -> Table:
    """One row per rate: what its clients get and what it costs one of them; see the words above."""
    titles = ("rate", "clients", "mean", "gap", "MB", "weights", "MFLOP", "ms", "peak MB")
    cells = [
        [
            f"{level['rate']:g}",
            str(level["clients"]),
            percent(level["accuracy"]),
            percent(level["accuracy_gap"]),
            f"{level['bytes_per_round'] / level['clients'] / 1e6:.3g}",
            f"{level['parameters']:,}",
            f"{level['step_flops'] / 1e6:.3g}",
            f"{level['step_seconds'] * 1e3:.3g}",
            f"{level['step_peak_bytes'] / 1e6:.3g}",
        ]
        for level in levels
    ]
    return plain_table(titles, cells, numbers_from=0)
