"""Commands over Flower: `fedkin serve`, `fedkin join`, `fedkin certs`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedkin.command.status import status
from fedkin.errors import FedkinError
from fedkin.runs.limits import LONGEST_WAIT

Certs = Annotated[Path | None, typer.Option(help="folder of certificates: see `fedkin certs`")]
ConfigFile = Annotated[Path | None, typer.Argument(help="a config.toml with a [sites] table")]
Patience = Annotated[
    float, typer.Option(min=0, max=LONGEST_WAIT, help="seconds to wait for the others to connect")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="allow plain connections beyond loopback")
]


def add_commands(app: typer.Typer) -> None:
    """Register the commands; Flower is imported only when one is used."""
    app.command()(serve)
    app.command()(join)
    app.command()(certs)
    app.command()(status)
    app.command()(sites)


def need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise FedkinError("this needs Flower: pip install 'fedkin[flower]'")


def serve(
    config: ConfigFile = None,
    clients: Annotated[
        int, typer.Option(min=1, max=10**6, help="sites to wait for before the first round")
    ] = 2,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="port to listen on")] = 8000,
    wait: Annotated[
        float | None,
        typer.Option(
            help="go on when this share of sites has answered, after some grace for the others; "
            "evaluations wait for all (default 1: all)"
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(max=LONGEST_WAIT, help="longest wait for answers, in seconds (default 120)"),
    ] = None,
    patience: Patience = 3600.0,
    certs: Certs = None,
    insecure: Insecure = False,
    secure_sum: Annotated[
        bool,
        typer.Option("--secure-sum", help="get sums over sites only, and no single site's answer"),
    ] = False,
    secure_at_least: Annotated[
        int | None,
        typer.Option(help="with --secure-sum: sites that must be in every sum (default 3)"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="run folder to make")] = None,
    resume: Annotated[Path | None, typer.Option(help="run folder to resume")] = None,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="only make the run folder, to use with your own SuperLink"),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress display")] = False,
) -> None:
    """Train over sites that join with `fedkin join`.

    Examples:
      fedkin serve config.toml --clients 3
      fedkin serve config.toml --clients 3 --host 0.0.0.0 --certs certs
      fedkin serve config.toml --clients 5 --certs certs --secure-sum --secure-at-least 4
      fedkin serve --resume runs/scaffold-csv-001
    """
    need_flower()
    from fedkin.command.runs import finish
    from fedkin.command.screen import say
    from fedkin.engines.flower.processes import check_free
    from fedkin.engines.flower.transport import WaitPolicy
    from fedkin.runs.folder import RunFolder
    from fedkin.runs.sites import serving
    from fedkin.runs.sites.plan import Plan

    if (config is None) == (resume is None):
        raise FedkinError("give a config.toml to start a run, or --resume RUN to continue one")
    options = serving.ServeOptions(host, port, certs, insecure, patience)
    keys = options.keys()
    if not prepare:
        check_free(host, port)
    if config is not None:
        if keys and len(keys.sites) < clients:
            raise FedkinError(
                f"{certs} has keys for {len(keys.sites)} sites, and --clients waits for {clients}: "
                "add some with `fedkin certs --site`"
            )
        waiting = WaitPolicy().changed(wait, timeout)
        folder = serving.prepare(config, clients, waiting, out, keys, secure_sum, secure_at_least)
    else:
        assert resume is not None
        if secure_sum or secure_at_least is not None:
            raise FedkinError("a run goes on with the sums it began with: leave --secure-sum out")
        folder = RunFolder.open(resume)
        Plan.read(resume).with_waiting(wait, timeout).write(resume)
    if prepare:
        place = folder.path.resolve()
        given = f"--run-config 'folder=\"{place}\"'"
        say(f"made {place}; start it with: flwr run {place / 'app'} SUPERLINK --stream {given}")
        return
    serving.serve(folder, options, lambda run: finish(run, quiet, options.resume, lines=True), say)


def join(
    data: Annotated[Path, typer.Option(help="this site's .csv, .parquet or .npz file")],
    name: Annotated[str, typer.Option(help="this site's name")],
    server: Annotated[str, typer.Option(help="the server's HOST:PORT")] = "",
    columns: Annotated[
        str, typer.Option(help="columns that may be inputs of models, separated by commas")
    ] = "",
    target: Annotated[str, typer.Option(help="the column that may be predicted")] = "",
    policy: Annotated[
        Path | None, typer.Option(help="this site's limits (site.toml): see `fedkin join --check`")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="take part in what is within the limits without asking")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="only show the limits and the file; nothing is sent")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="with --check: the server's config.toml, tried here")
    ] = None,
    certs: Certs = None,
    insecure: Insecure = False,
    home: Annotated[
        Path | None, typer.Option(help="folder for this site's state and model")
    ] = None,
    device: Annotated[str, typer.Option(help="where torch computes: cpu, cuda, ...")] = "cpu",
    poll: Annotated[
        float,
        typer.Option(
            min=0.01, max=3600, help="longest time between polls for messages, in seconds"
        ),
    ] = 0.2,
    patience: Patience = 3600.0,
    secure_at_least: Annotated[
        int | None,
        typer.Option(help="take part in secure sums of at least so many sites only"),
    ] = None,
    stay: Annotated[bool, typer.Option("--stay", help="wait for further runs")] = False,
) -> None:
    """Take part in a run with this site's own data, which stay here.

    Before anything is read you are shown who asks for what and asked whether you agree; a service
    says --yes, and names the columns that may be used (or a --policy that does).

    Examples:
      fedkin join --data my.csv --name clinic-a --columns age,bmi,sex --target outcome --check
      fedkin join --server server.example.org:8000 --data my.csv --name clinic-a --certs clinic-a
      fedkin join --server ... --data my.csv --name clinic-a --policy site.toml --yes
    """
    need_flower()
    from fedkin.command.screen import say
    from fedkin.runs.sites import checking, joining
    from fedkin.runs.sites.site import SiteWorker, check_name
    from fedkin.runs.sites.sums import secure_site

    check_name(name)
    if not data.is_file():
        raise FedkinError(f"there is no file {data}")
    limits = checking.limits(policy, columns, target)
    place = (home or Path(f"fedkin-{name}")).resolve()
    if check:
        for line in checking.report(name, data.resolve(), limits, config):
            say(line)
        return
    keys = joining.keys_for(server, certs, insecure)
    agree = checking.agree_by(limits, data, yes, say)
    secure = secure_site(name, keys, secure_at_least)
    site = SiteWorker(name, data.resolve(), place, device, say, secure, limits, agree, server)
    site.lines = not sys.stdout.isatty()
    joining.join(joining.JoinOptions(server, site, keys, poll, stay, patience), say)


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
    """Write the [sites] table of a config from a table: columns, categories, classes, scales.

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
