"""`fedkin reproduce`: the papers' tables and figures, next to ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedkin.errors import FedkinError, unknown
from fedkin.runs.limits import MOST_ROUNDS

if TYPE_CHECKING:
    from fedkin.papers.item import Item

Scale = Literal["small", "paper"]
Paper = Annotated[
    str | None, typer.Argument(help="perm, pfedkm, submodel, unified, feddeper; or beyond")
]
Number = Annotated[str | None, typer.Option(help="which one of the paper's, by its number")]
Out = Annotated[
    Path, typer.Option(help="folder of runs and results; finished runs in it are reused")
]


def add_commands(app: typer.Typer) -> None:
    """Register the command; recipes are loaded only when it is used."""
    app.command()(reproduce)


def reproduce(
    paper: Paper = None,
    figure: Number = None,
    table: Number = None,
    experiment: Annotated[str | None, typer.Option(help="an experiment by its name")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="all items (of the paper, where one is named)")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="list the items and their panels")] = False,
    scale: Annotated[
        Scale,
        typer.Option(help="small: minutes to two hours on two cores; paper: the paper's own sizes"),
    ] = "small",
    panel: Annotated[
        list[str] | None, typer.Option(help="only this panel (may be repeated): see --list")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="so many and no more, instead of as many as needed"),
    ] = None,
    most_seeds: Annotated[
        int, typer.Option(min=1, max=20, help="add no more than this to settle claims")
    ] = 20,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_ROUNDS, help="instead of the recipe's, for a trial"),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="folder with data sets, searched before FEDKIN_DATA")
    ] = None,
    stand_in: Annotated[
        bool,
        typer.Option("--stand-in", help="use a substitute where the paper's data are not found"),
    ] = False,
    device: Annotated[str | None, typer.Option(help="where to compute, such as cuda")] = None,
    jobs: Annotated[
        int, typer.Option(min=1, max=256, help="processes at a time, each with runs of one method")
    ] = 1,
    out: Out = Path("runs/papers"),
    write: Annotated[
        Path | None,
        typer.Option(help="write pages into this folder; items that were not run stay on them"),
    ] = None,
) -> None:
    """Reproduce a paper's table or figure and check which of its claims hold.

    Seeds are added until every claim is settled or 20 are used; the results say how many it
    took. Finished runs are not repeated. Every item gets result.md, report.html, table.csv,
    claims.csv and figures/ (PNG, SVG, csv) next to its runs.

    Examples:
      fedkin reproduce --list
      fedkin reproduce perm --figure 1
      fedkin reproduce feddeper --table 1 --scale paper --panel mnist-mlp-a-m5
      fedkin reproduce unified --figure 1 --seeds 30
      fedkin reproduce submodel --table 2 --scale paper --device cuda
      fedkin reproduce neighbours
      fedkin reproduce beyond
      fedkin reproduce --all --write docs/reproduction
    """
    from fedkin.command.screen import say
    from fedkin.papers.index import PAPERS, WHOLE

    if paper is not None and paper not in PAPERS:
        raise unknown("paper", paper, PAPERS)
    papers = [paper] if paper else list(PAPERS)
    named = {"figure": figure, "table": table, "experiment": experiment}
    alone = paper in WHOLE and not (listed or write or any(named.values()))
    if everything or alone:
        items = [(name, item) for name in papers for item in PAPERS[name]]
    else:
        items = [_find(paper, kind, number) for kind, number in named.items() if number is not None]
    if listed or not (items or write):
        _show_list(papers)
        return
    options: dict[str, Any] = {"seeds": seeds, "rounds": rounds, "only": panel or ()}
    options |= {"stand_in": stand_in, "data_dir": None if data_dir is None else str(data_dir)}
    options["device"] = device
    done = (_one(name, item, scale, out, options, jobs, most_seeds) for name, item in items)
    failed = [error for error in done if error]
    if write is not None:
        from fedkin.papers.collection import write_pages

        found = write_pages(write, out)
        say(f"{write}: {len(found)} results")
    if failed:
        if len(items) == 1:
            raise failed[0]
        for error in failed:
            say(f"not done: {error}")
        raise SystemExit(1)


def _find(paper: str | None, kind: str, number: str) -> tuple[str, Item]:
    from fedkin.papers.index import PAPERS

    if paper is None:
        raise FedkinError(f"name the paper too, as in: fedkin reproduce perm --{kind} {number}")
    for item in PAPERS[paper]:
        if item.covers(kind, number):
            return paper, item
    raise unknown(f"{kind} of {paper}", number, [i.number for i in PAPERS[paper] if i.kind == kind])


def _one(
    paper: str, item: Item, scale: Scale, out: Path, options: dict[str, Any], jobs: int, most: int
) -> FedkinError | None:
    """Run an item and show the results; returns the errors."""
    from fedkin.command.screen import say
    from fedkin.command.watching import watched
    from fedkin.papers.execution import StoppedError, run
    from fedkin.papers.outcome import outcome
    from fedkin.papers.planning import plan, stages
    from fedkin.papers.presentation import REPORT, present
    from fedkin.runs.provenance import complete

    try:
        job = plan(paper, item, scale, out, **options)
        for sentence in job.missing:
            say(f"left out: {sentence}")
        for stage in stages(job, most):
            title = f"{paper} {item.name}, {stage.seeds} seeds"
            with watched(title, stage.rounds) as (advance, stop):
                run(stage, complete, advance, stop, jobs)
    except StoppedError:
        raise
    except FedkinError as error:
        return error
    found = outcome(paper, item, scale, job.parent)
    assert found is not None
    say(present(found))
    say(f"page: {found.folder / REPORT}")
    return None


def _show_list(papers: Sequence[str]) -> None:
    from fedkin.command.screen import console, plain_table
    from fedkin.papers.index import PAPERS

    rows = []
    for paper in papers:
        for item in PAPERS[paper]:
            small = [p.name for p in item.panels if p.at("small")]
            more = [p.name for p in item.panels if not p.at("small")]
            shown = ", ".join(small) + (f"; paper scale only: {', '.join(more)}" if more else "")
            rows.append([f"{paper} --{item.kind} {item.number}", item.title, shown])
    console.print(plain_table(("item", "what it shows", "panels"), rows))
