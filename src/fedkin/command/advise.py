"""`fedkin advise`: one command, one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.errors import FedkinError

# rows of the table on the screen; the page and the csv have all
MOST_ROWS = 30
WIDE = "learns from"  # on the page and in the csv only: with it most screens break words


def add_commands(app: typer.Typer, any_key: dict[str, Any]) -> None:
    app.command(context_settings=any_key)(advise)


def advise(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="a table, a config.toml or a data set")],
    out: Annotated[
        Path | None, typer.Option(help="folder for the answer (default: a new one in runs/)")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress display")] = False,
) -> None:
    """Should these sites collaborate, with whom, with what, at what cost, and how sure is that?

    Tries going alone, one model for all and personal methods on several splits of every site's
    rows. Leaves a page (advice.html), advice.json, sites.csv and a config.toml for `fedkin run`
    and `fedkin serve`. Options are keys of a config's data table, as in `fedkin run`.

    Examples:
      fedkin advise patients.csv --client-column hospital --target-column disease
      fedkin advise rotated-digits
    """
    from fedkin.command.screen import console, plain_table, progress, say
    from fedkin.data.notes import in_few_lines
    from fedkin.reports.advice_words import SECTIONS, site_row
    from fedkin.reports.advice_write import CONFIG, PAGE, write_advice
    from fedkin.reports.advising import source_of
    from fedkin.runs.advice import give_advice
    from fedkin.runs.folder import next_folder
    from fedkin.runs.options import parse
    from fedkin.runs.progress import Progress
    from fedkin.runs.provenance import RUNS

    values = parse("local", context.args)
    others = [key for key in values if key != "data"]
    if others:
        raise FedkinError(
            f"advise takes keys of [data] only, and {others[0]} is not one of them: methods and "
            "settings are what it looks for"
        )
    folder = out or next_folder(RUNS, f"advice-{Path(data).stem}")
    if (folder / PAGE).exists():
        raise FedkinError(f"{folder} already holds advice: choose another --out")
    source = source_of(data, values.get("data", {}))
    with progress("advice", 0, 1, quiet) as show:

        def tell(done: int, total: int) -> None:
            show(Progress(done, total))

        found = give_advice(source, on_progress=tell)
    for note in in_few_lines(found.notes):
        say(f"note: {note}")
    for title, sentences in SECTIONS.items():
        console.print(f"\n[bold]{title}[/]")
        for sentence in sentences(found):
            say(f"  {sentence}")
    rows = [site_row(site, found.measure) for site in found.sites]
    shown = rows[:MOST_ROWS]
    titles = [key for key in dict.fromkeys(key for row in shown for key in row) if key != WIDE]
    console.print(plain_table(titles, [[row.get(t, "-") for t in titles] for row in shown]))
    if len(rows) > len(shown):
        say(f"... and {len(rows) - len(shown)} more sites")
    page = write_advice(found, folder)
    say(f"page: {page}")
    say(f"next: fedkin run {folder / CONFIG}")
