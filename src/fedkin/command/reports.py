"""Commands on finished runs: `fedkin report`, `export`, `predict` and `who`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkin.errors import FedkinError
from fedkin.runs.names import client_at, client_position

if TYPE_CHECKING:
    from fedkin.reports.export import Source

Runs = Annotated[list[Path], typer.Argument(help="run folders, or folders that hold some")]
RunPath = Annotated[Path, typer.Argument(help="a run folder")]
ModelPath = Annotated[
    Path, typer.Argument(help="a run folder, or the model.safetensors that a site has written")
]
Client = Annotated[str | None, typer.Option(help="a client's name")]
Place = Annotated[int | None, typer.Option(help="or the client's place among all, from 0")]


def add_commands(app: typer.Typer) -> None:
    """Register the commands; all they need is imported only when used."""
    app.command()(report)
    app.command()(export)
    app.command()(predict)
    app.command()(who)


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="the page (default: report.html there)")] = None,
    target: Annotated[
        float | None,
        typer.Option(help="show the cost to reach this accuracy (or loss), such as 0.8"),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="write TensorBoard event files too")
    ] = False,
    latex: Annotated[
        bool, typer.Option("--latex", help="write the table of results as table.tex too")
    ] = False,
) -> None:
    """Write one self-contained page about runs: tables, figures, tests, settings.

    Runs that differ only in their seed are repeats of each other. Every figure is also
    written as PNG, SVG and csv into a folder beside the page.

    Example: fedkin report runs/compare-001
    """
    from fedkin.command.screen import console, plain_table, say
    from fedkin.reports import write_report
    from fedkin.reports.latex import latex_table
    from fedkin.reports.tables import result_rows
    from fedkin.reports.tensorboard import write_events
    from fedkin.reports.write import conclusions
    from fedkin.runs.groups import find_runs
    from fedkin.tensors import write_text

    page = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    if page.suffix.lower() not in (".html", ".htm"):
        raise FedkinError(f"--out {page}: the report is an .html file")
    if target is not None and not isfinite(target):
        raise FedkinError(f"--target {target}: give a number that can be reached, such as 0.8")
    found = write_report(runs, page, target)
    rows = result_rows(found.summaries, found.chosen, found.score)
    titles = [title for title in rows[0] if not title.startswith(("best round", "global"))]
    cells = [[row[title] for title in titles] for row in rows]
    console.print(plain_table(titles, cells, numbers_from=1))
    for sentence in [*conclusions(found), *found.notes]:
        say(sentence)
    if latex:
        table = page.with_name("table.tex")
        write_text(table, latex_table(found))
        say(f"LaTeX: {table}")
    if tensorboard:
        for run in find_runs(runs):
            say(f"TensorBoard: {write_events(run)}")
    say(f"report: {page}")


def export(
    run: ModelPath,
    to: Annotated[str, typer.Option(help="model.safetensors, model.pt2 or model.onnx")],
    client: Client = None,
    client_number: Place = None,
) -> None:
    """Write a client's personal model to a file for other programs.

    The file's ending says how: .safetensors holds the parameters by name, .pt2 the whole
    model by torch.export, .onnx the whole model for other runtimes (extra `onnx`) with the
    preparation of raw inputs, names and probabilities of classes.

    Example: fedkin export runs/perm-patients-001 --client clinic-a --to model.pt2
    """
    from fedkin.command.screen import say
    from fedkin.reports.export import export as write

    stored, place = _model(run, client, client_number)
    say(f"model of client {stored.inputs.clients[place]}: {write(stored, place, to)}")


def predict(
    run: ModelPath,
    data: Annotated[Path, typer.Argument(help="new samples: a .csv, .parquet or .npz file")],
    client: Client = None,
    client_number: Place = None,
    out: Annotated[Path | None, typer.Option(help="csv file (default: the screen)")] = None,
) -> None:
    """Predict with a client's personal model, one row per sample of DATA.

    A table needs the feature columns of the training data; other columns are ignored. Samples
    are scaled and encoded in the same way as the training data.

    Example: fedkin predict runs/perm-patients-001 new.csv --client clinic-a
    """
    from fedkin.command.screen import say
    from fedkin.reports.export import predict as look
    from fedkin.tensors import write_text

    stored, place = _model(run, client, client_number)
    text = look(stored, place, data).to_csv(index_label="row")
    if out is None:
        sys.stdout.write(text)
    else:
        write_text(out, text)
        say(f"predictions: {out}")


def who(run: RunPath, client: Client = None, client_number: Place = None) -> None:
    """Show which clients a client learns from, and with which weights, largest first.

    Only methods that learn these weights, such as perm, have them. For perm a sentence tells how
    widely the client shares and how sure it is that this is better than training alone. For a
    run with rates the table also shows each client's rate, for one where clients have models of
    their own each client's model.

    Example: fedkin who runs/perm-rotated-digits-001 --client 7
    """
    from fedkin.command.screen import console, plain_table, say
    from fedkin.runs.own_models import read_models
    from fedkin.runs.privacy_file import read_privacy
    from fedkin.runs.who import read_mixing, read_rates, read_sharing, sharing_words, who_helps

    alpha, names = read_mixing(run)
    place = chosen(names, client, client_number)
    table, rates, own = who_helps(alpha, names, place), read_rates(run), read_models(run)
    more = {"rate": {client: f"{rate:g}" for client, rate in rates.items()}}
    more["model"] = dict(zip(own["client"], own["model"], strict=True)) if len(own) else {}
    known = {title: facts for title, facts in more.items() if facts}
    titles = [f"client {names[place]} learns from", "weight", *known]
    rows = [
        [
            str(row.client),
            f"{row.weight:.1%}",
            *(f.get(str(row.client), "") for f in known.values()),
        ]
        for row in table.itertuples()
    ]
    console.print(plain_table(titles, rows, numbers_from=1))
    sharing = read_sharing(run)
    if names[place] in sharing:
        say(sharing_words(*sharing[names[place]]))
    if read_privacy(run) is not None:
        say("note: these weights are outside the run's privacy guarantee unless they were learnt "
            "from noisy answers (see privacy.json), and the clients' names always are")  # fmt: skip


def _model(path: Path, client: str | None, number: int | None) -> tuple[Source, int]:
    """A run and the place of the client named, or a site's own model file, which has one client."""
    from fedkin.runs.stored import ModelFile, open_run

    if path.is_file():
        own = ModelFile(path)
        return own, 0 if client is None and number is None else chosen(
            own.inputs.clients, client, number
        )
    stored = open_run(path)
    return stored, chosen(stored.inputs.clients, client, number)


def chosen(names: Sequence[str], client: str | None, number: int | None) -> int:
    """The place of the client that the options name."""
    if (client is None) == (number is None):
        raise FedkinError("name one client: --client NAME, or --client-number PLACE")
    return client_position(names, client) if client is not None else client_at(names, number or 0)
