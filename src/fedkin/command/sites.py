"""Commands over Flower: `fedkin serve`, `join`, `status`, and here `certs` and `sites`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkin.command.join import join
from fedkin.command.serve import serve
from fedkin.command.site_options import need_flower
from fedkin.command.status import status
from fedkin.errors import FedkinError


def add_commands(app: typer.Typer) -> None:
    """Register the commands; Flower is imported only when one is used."""
    app.command()(serve)
    app.command()(join)
    app.command()(certs)
    app.command()(status)
    app.command()(sites)


def certs(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="FOLDER, or: request FOLDER, sign FILE.pub, revoke"),
    ] = None,
    host: Annotated[list[str] | None, typer.Option(help="a name or address of the server")] = None,
    site: Annotated[list[str] | None, typer.Option(help="a site's name")] = None,
    folder: Annotated[
        Path, typer.Option(help="with sign and revoke: the folder with the authority")
    ] = Path("certs"),
) -> None:
    """Make an authority, the server's certificate and a key for every site; or let sites make
    their own keys and sign them.

    Examples:
      fedkin certs --host server.example.org --site clinic-a --site clinic-b
      fedkin certs request clinic-a              (at the site: it sends clinic-a/site.pub)
      fedkin certs sign site.pub --site clinic-a (at the server: admits it, at once)
      fedkin certs revoke --site clinic-a        (admits it no more)
    """
    need_flower()
    from fedkin.command.screen import say
    from fedkin.engines.flower import keys
    from fedkin.engines.flower.certificates import make_certificates

    action, *rest = words or [""]
    if action in ("request", "sign") and len(rest) != 1:
        what = "FOLDER" if action == "request" else "FILE.pub --site NAME"
        raise FedkinError(f"write `fedkin certs {action} {what}`")
    if action in ("sign", "revoke") and len(site or []) != 1:
        raise FedkinError(f"`fedkin certs {action}` is for one site: name it with --site")
    if action == "request":
        told = keys.request_key(Path(rest[0]))
    elif action == "sign" and site:
        told = keys.sign_key(folder, Path(rest[0]), site[0])
    elif action == "revoke" and site:
        told = keys.revoke_key(folder, site[0])
    else:
        told = make_certificates(Path(action or "certs"), host or [], site or [])
    for sentence in told or ["nothing new to make"]:
        say(sentence)


def sites(
    tables: Annotated[list[Path], typer.Argument(help="a .csv or .parquet table, or several")],
    target: Annotated[str, typer.Option(help="the column to predict")],
    leave_out: Annotated[
        str, typer.Option(help="columns that are no inputs, separated by commas")
    ] = "",
) -> None:
    """Write the sites table of a config from a table: columns, categories, classes, scales.

    Look it over before you use it: it tells the categories, classes, means and deviations of the
    table to everybody who reads the config.

    Example: fedkin sites example.csv --target outcome --leave-out name >> config.toml
    """
    from fedkin.command.screen import say
    from fedkin.runs.sites.describing import sites_table

    names = [name.strip() for name in leave_out.split(",") if name.strip()]
    text, notes = sites_table(tables, target, names)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    say(text.rstrip())
