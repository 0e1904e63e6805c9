"""Commands over Flower: `fedkin serve`, `fedkin join`, `fedkin certs`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from fedkin.command.screen import say
from fedkin.errors import FedkinError

Certs = Annotated[Path | None, typer.Option(help="folder of certificates: see `fedkin certs`")]
ConfigFile = Annotated[Path | None, typer.Argument(help="a config.toml with a [sites] table")]
Patience = Annotated[float, typer.Option(min=0, help="seconds to wait for the others to connect")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="allow plain connections beyond loopback")
]


def add_commands(app: typer.Typer) -> None:
    """Register the commands; Flower is imported only when one is used."""
    app.command()(serve)
    app.command()(join)
    app.command()(certs)


def need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise FedkinError("this needs Flower: pip install 'fedkin[flower]'")


def serve(
    config: ConfigFile = None,
    clients: Annotated[int, typer.Option(help="sites to wait for before the first round")] = 2,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="port to listen on")] = 8000,
    wait: Annotated[
        float | None,
        typer.Option(help="continue when this share of sites has answered (default 0.8)"),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="longest wait for answers, in seconds (default 120)")
    ] = None,
    patience: Patience = 3600.0,
    certs: Certs = None,
    insecure: Insecure = False,
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
      fedkin serve --resume runs/scaffold-csv-001
    """
    need_flower()
    from fedkin.command.runs import finish
    from fedkin.engines.flower.processes import check_free
    from fedkin.engines.flower.transport import WaitPolicy
    from fedkin.runs.folder import RunFolder
    from fedkin.runs.provenance import RESUME_SERVED
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
        folder = serving.prepare(config, clients, WaitPolicy().changed(wait, timeout), out)
    else:
        assert resume is not None
        folder = RunFolder.open(resume)
        Plan.read(resume).with_waiting(wait, timeout).write(resume)
    if prepare:
        place = folder.path.resolve()
        given = f"--run-config 'folder=\"{place}\"'"
        say(f"made {place}; start it with: flwr run {place / 'app'} SUPERLINK --stream {given}")
        return
    serving.serve(folder, options, lambda run: finish(run, quiet, RESUME_SERVED), say)


def join(
    server: Annotated[str, typer.Option(help="the server's HOST:PORT")],
    data: Annotated[Path, typer.Option(help="this site's .csv, .parquet or .npz file")],
    name: Annotated[str, typer.Option(help="this site's name")],
    certs: Certs = None,
    insecure: Insecure = False,
    home: Annotated[
        Path | None, typer.Option(help="folder for this site's state and model")
    ] = None,
    device: Annotated[str, typer.Option(help="where torch computes: cpu, cuda, ...")] = "cpu",
    poll: Annotated[
        float, typer.Option(min=0.01, help="longest time between polls for messages, in seconds")
    ] = 0.2,
    patience: Patience = 3600.0,
    stay: Annotated[bool, typer.Option("--stay", help="wait for further runs")] = False,
) -> None:
    """Take part in a run with this site's own data, which stay here.

    Example: fedkin join --server server.example.org:8000 --data my.csv --name clinic-a
    --certs clinic-a-certs
    """
    need_flower()
    from fedkin.runs.sites import joining
    from fedkin.runs.sites.site import SiteWorker

    keys = joining.keys_for(server, certs, insecure)
    if not data.is_file():
        raise FedkinError(f"there is no file {data}")
    place = (home or Path(f"fedkin-{name}")).resolve()
    site = SiteWorker(name, data.resolve(), place, device, say)
    joining.join(joining.JoinOptions(server, site, keys, poll, stay, patience), say)


def certs(
    folder: Annotated[Path, typer.Argument(help="folder for the keys")] = Path("certs"),
    host: Annotated[list[str] | None, typer.Option(help="a name or address of the server")] = None,
    site: Annotated[list[str] | None, typer.Option(help="a site's name")] = None,
) -> None:
    """Make an authority, the server's certificate and a key for every site.

    Example: fedkin certs --host server.example.org --site clinic-a --site clinic-b
    """
    need_flower()
    from fedkin.engines.flower.certificates import make_certificates

    for sentence in make_certificates(folder, host or [], site or []) or ["nothing new to make"]:
        say(sentence)
