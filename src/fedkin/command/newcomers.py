"""`fedkin welcome`: a model for a site that was not there."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer


def add_commands(app: typer.Typer) -> None:
    app.command()(welcome)


def welcome(
    run: Annotated[Path, typer.Argument(help="a finished run's folder")],
    data: Annotated[Path, typer.Option(help="the new site's .csv, .parquet or .npz file")],
    name: Annotated[str, typer.Option(help="the new site's name")],
    steps: Annotated[int, typer.Option(min=0, max=10_000, help="steps at home")] = 10,
    lr: Annotated[
        float | None, typer.Option(min=0, help="size of steps at home (default: the method's)")
    ] = None,
    test_fraction: Annotated[
        float | None,
        typer.Option(min=0, max=0.9, help="share of rows to judge on (default: the run's)"),
    ] = None,
) -> None:
    """Give a new site a personal model from a finished run; nobody else's model changes.

    The new table is prepared as the run's was. What the site starts from depends on the method:
    PERM's kin, the part that all share, or the nearest cluster; then it takes steps at home. The
    table shows how good the model is on rows kept aside, next to training alone.

    Example: fedkin welcome runs/perm-patients-001 --data new-site.csv --name clinic-d
    """
    from fedkin.command.runs import show_newcomers
    from fedkin.command.screen import say
    from fedkin.runs.welcoming import welcome as give

    found = give(run, data, name, steps, lr, test_fraction)
    show_newcomers(found.table)
    if not found.hosts:
        say("note: the data of the run's clients are not here (or have changed), so the newcomer "
            "starts from models alone and visited nobody")  # fmt: skip
    say(f"model: {found.folder}")
    say(f"use it: fedkin predict {quote(str(found.folder))} NEW.csv --client {quote(name)}")
