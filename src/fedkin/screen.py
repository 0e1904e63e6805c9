"""What people see while and after a run: progress and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedkin.training import Progress as RoundDone

console = Console()


@contextmanager
def progress(
    title: str, start: int, total: int, quiet: bool
) -> Iterator[Callable[[RoundDone], None]]:
    """A progress bar with rounds per second, time left and the present personal accuracy."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[accuracy]}"),
    )
    with Progress(*columns, console=console, disable=quiet, transient=True) as bar:
        task = bar.add_task(title, total=total, completed=start, rate="", accuracy="")

        def advance(done: RoundDone) -> None:
            speed = bar.tasks[task].speed
            rate = f"{speed:.1f} rounds/s" if speed else ""
            shown = "" if done.accuracy is None else f"personal accuracy {done.accuracy:.1%}"
            bar.update(task, completed=done.round, rate=rate, accuracy=shown)

        yield advance


def percent(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.1%}"


def result_table(rows: list[dict[str, float | str | None]]) -> Table:
    """One row per method: personal accuracy, gain over going alone, cost."""
    table = Table()
    for title in (
        "method",
        "mean",
        "worst 10%",
        "best",
        "better than alone",
        "MB up",
        "MB down",
        "s",
    ):
        table.add_column(title, justify="left" if title == "method" else "right")
    for row in rows:
        table.add_row(
            str(row["method"]),
            *(percent(_number(row[key])) for key in ("mean", "worst", "best", "better")),
            *(f"{_number(row[key]) or 0:.2f}" for key in ("mb_up", "mb_down", "seconds")),
        )
    return table


def _number(value: float | str | None) -> float | None:
    return value if isinstance(value, float) else None
