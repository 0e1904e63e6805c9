"""What users see during and after a run: progress and tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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

from fedkin.errors import visible
from fedkin.runs.names import cut

if TYPE_CHECKING:
    import pandas as pd

    from fedkin.runs.measures import Measure
    from fedkin.runs.progress import Progress as RoundDone

console = Console()
LINE_EVERY = 10.0  # seconds between two lines of progress in a log
LONGEST_CELL = 500  # letters; names can be longer


def say(text: str) -> None:
    """Print a line as it is: never wrapped, so that commands in it can be copied."""
    console.print(visible(text), markup=False, highlight=False, soft_wrap=True)


class RateColumn(ProgressColumn):
    """Rounds per second, computed when the bar is drawn and not in every round."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} rounds/s" if task.speed else "")


@contextmanager
def progress(
    title: str, start: int, total: int, quiet: bool, lines: bool = False
) -> Iterator[Callable[[RoundDone], None]]:
    """A progress bar with rounds per second, time left and the current personal accuracy.

    With `lines`, where there is no terminal, plain lines instead: at most one in ten seconds, and
    the last.
    """
    if lines and not quiet and not console.is_terminal:
        yield plain_progress(title)
        return
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
            value = measured(done.score, done.measure)
            shown = "" if done.score is None else f"personal {done.measure.title} {value}"
            bar.update(task, completed=done.round, total=done.rounds, accuracy=shown)

        yield advance


def plain_progress(title: str) -> Callable[[RoundDone], None]:
    """A line for a round, for logs."""
    said = 0.0

    def advance(done: RoundDone) -> None:
        nonlocal said
        now = time.monotonic()
        if now > said + LINE_EVERY or done.round == done.rounds:
            said = now
            score = "" if done.score is None else f", personal {done.measure.title} "
            score += "" if done.score is None else measured(done.score, done.measure)
            say(f"{title}: round {done.round} of {done.rounds}{score}")

    return advance


def measured(value: Any, measure: Measure) -> str:
    """A score: in percent where it is a share; a dash where it is not known."""
    if value is None or value != value:
        return "-"
    return f"{value:.1%}" if measure.share else rounded(value)


def percent(value: Any) -> str:
    """A share as a percentage; a dash where it is not known."""
    return "-" if value is None or value != value else f"{value:.1%}"


def plain_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int | None = None
) -> Table:
    """A table in which nothing is cut off: long cells are wrapped.

    Columns from `numbers_from` on hold numbers, which are aligned to the right.
    """
    table = Table()
    for place, title in enumerate(titles):
        number = numbers_from is not None and place >= numbers_from
        table.add_column(
            Text(cut(visible(title), LONGEST_CELL)),
            justify="right" if number else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cut(visible(cell), LONGEST_CELL)) for cell in row))
    return table


COSTS = {"mb_up": 2, "mb_down": 2, "seconds": 1}  # with so many digits
GAIN_WORDS = (
    "gain: over training alone, mean over clients with its 95 % interval; better, same, worse: "
    "shares of clients whose own gain is, or is not, beyond the noise of their few test examples"
)


def result_table(
    rows: Sequence[Mapping[str, float | str | None]], measures: Sequence[Measure]
) -> Table:
    """One row per method: how good personal models are, who is better off than alone, cost.

    The first measure decides who is worst and best.
    """
    first, *others = measures
    titles = (
        "method", first.title, "worst 10%", "best", *(other.title for other in others),
        "gain ±95%", "better/ same/ worse %", "MB up", "MB down", "s",
    )  # fmt: skip
    cells = [
        [
            str(row["method"]),
            *(measured(row[key], first) for key in ("mean", "worst", "best")),
            *(measured(row.get(f"mean_{other}"), other) for other in others),
            gain_of(row, first),
            three_shares(row),
            *(f"{row[key] or 0:.{digits}f}" for key, digits in COSTS.items()),
        ]
        for row in rows
    ]
    return plain_table(titles, cells, numbers_from=1)


def gain_of(row: Mapping[str, Any], measure: Measure) -> str:
    """The mean gain over alone and its 95 % interval, `+5.3 ±3.1`; more is always better.

    In points where the measure is a share.
    """
    mean, high = row.get("gain"), row.get("gain_high")
    if mean is None or high is None or mean != mean:
        return "-"
    shown, half = (
        f"{100 * number:.1f}" if measure.share else rounded(number)
        for number in (mean, high - mean)
    )
    return f"{'+' if mean > 0 else ''}{shown} ±{half}"


def three_shares(row: Mapping[str, Any]) -> str:
    """Clients that are better off, the same within the noise, and worse off."""
    shares: list[Any] = [row.get(key) for key in ("better", "same", "worse")]
    if any(share is None or share != share for share in shares):
        return "-"
    return "/".join(f"{100 * share:.0f}" for share in shares)


def show_results(
    rows: Sequence[Mapping[str, float | str | None]], measures: Sequence[Measure]
) -> None:
    """The table of results, the trivial answer beside it, and a warning where it is as good."""
    console.print(result_table(rows, measures))
    first = measures[0]
    if any(row.get("gain") is not None for row in rows):
        say(GAIN_WORDS)
    trivial = [row["trivial"] for row in rows if isinstance(row.get("trivial"), float)]
    if not trivial:
        return
    say(f"trivial answer (each client's commonest class or mean target): {first.title} "
        f"{measured(trivial[0], first)}")  # fmt: skip
    for row in rows:
        mean, aim = row["mean"], row.get("trivial")
        known = isinstance(mean, float) and isinstance(aim, float)
        if known and first.sign * (mean - aim) <= 0:  # type: ignore[operator]
            say(f"warning: {row['method']} does not beat the trivial answer")


CAPACITY_WORDS = (
    "mean: personal accuracy; alone: of the same sizes, each client alone; gap: train minus test "
    "accuracy; MB: a client's traffic in a round; MFLOP, ms and peak MB: of one step of training"
)


def show_capacities(levels: pd.DataFrame) -> None:
    """One row per rate (and per method, if several): accuracy of its clients, cost per client."""
    titles = ["rate", "clients", "mean", "alone", "gap", "MB", "weights", "MFLOP", "ms", "peak MB"]
    several = "method" in levels
    cells = [
        [
            *([str(level["method"])] if several else []),
            f"{level['rate']:g}",
            f"{level['clients']:g}",
            percent(level["accuracy"]),
            percent(level.get("alone")),
            percent(level["accuracy_gap"]),
            rounded(level["bytes_per_round"] / level["clients"] / 1e6),
            f"{level['parameters']:,.0f}",
            rounded(level["step_flops"] / 1e6),
            rounded(level["step_seconds"] * 1e3),
            rounded(level["step_peak_bytes"] / 1e6),
        ]
        for level in levels.to_dict("records")
    ]
    console.print(plain_table(["method", *titles] if several else titles, cells, int(several)))
    console.print(CAPACITY_WORDS, highlight=False)


def show_models(models: pd.DataFrame, measure: Measure) -> None:
    """One row per architecture: who has it, its size, scores with others and alone."""
    cells = [
        [
            str(row["model"]),
            f"{row['clients']:g}",
            f"{row['parameters']:,.0f}",
            measured(row["score"], measure),
            measured(row["alone"], measure),
        ]
        for row in models.to_dict("records")
    ]
    titles = ["model", "clients", "weights", str(measure.title), "alone"]
    console.print(plain_table(titles, cells, numbers_from=1))


def rounded(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
