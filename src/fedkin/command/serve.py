"""`fedkin serve`: train over sites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkin.command.site_options import Certs, Insecure, LogLevel, Patience, need_flower
from fedkin.errors import FedkinError
from fedkin.runs.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from fedkin.runs.training import Trainer

ConfigFile = Annotated[Path | None, typer.Argument(help="a config.toml with a [sites] table")]


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
    open_run: Annotated[
        bool, typer.Option("--open", help="sites may join from the next round on")
    ] = False,
    every: Annotated[
        str, typer.Option(help="train again every 1d (12h, 30min), from where it ended")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="run folder to make")] = None,
    resume: Annotated[Path | None, typer.Option(help="run folder to resume")] = None,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="only make the run folder, to use with your own SuperLink"),
    ] = False,
    log_level: LogLevel = "info",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress display")] = False,
) -> None:
    """Train over sites that join with `fedkin join`.

    Examples:
      fedkin serve config.toml --clients 3
      fedkin serve config.toml --clients 3 --host 0.0.0.0 --certs certs
      fedkin serve config.toml --clients 5 --certs certs --secure-sum --secure-at-least 4
      fedkin serve config.toml --clients 3 --certs certs --open --every 1d
      fedkin serve --resume runs/scaffold-csv-001
    """
    need_flower()
    from fedkin.command.runs import finish
    from fedkin.command.screen import say
    from fedkin.engines.flower.exchange import WaitPolicy
    from fedkin.engines.flower.logs import check_level
    from fedkin.engines.flower.processes import check_free
    from fedkin.runs.folder import RunFolder
    from fedkin.runs.sites import serving
    from fedkin.runs.sites.plan import Plan
    from fedkin.runs.sites.schedule import seconds_of

    if (config is None) == (resume is None):
        raise FedkinError("give a config.toml to start a run, or --resume RUN to continue one")
    options = serving.ServeOptions(host, port, certs, insecure, patience, check_level(log_level))
    keys = options.keys()
    if prepare and every:
        raise FedkinError("--every starts runs itself: leave --prepare out")

    def train(run: Trainer) -> None:
        finish(run, quiet, options.resume, lines=True)

    if not prepare:
        check_free(host, port)
    if config is not None:
        if keys and len(keys.sites) < clients:
            say(
                f"note: {certs} has keys for {len(keys.sites)} sites, and --clients waits for "
                f"{clients}: sites of one machine may share one (`fedkin join --sites`); add "
                "others with `fedkin certs --site`"
            )
        waiting = WaitPolicy().changed(wait, timeout)
        wanted = serving.Wanted(
            config, clients, waiting, out, keys, secure_sum, secure_at_least, open_run
        )
        if every:
            serving.serve_every(wanted, seconds_of(every), options, train, say)
        folder = serving.prepare(wanted)
    else:
        assert resume is not None
        if secure_sum or secure_at_least is not None or open_run or every:
            raise FedkinError(
                "a run goes on as it began: leave --secure-sum, --open and --every out"
            )
        folder = RunFolder.open(resume)
        Plan.read(resume).with_waiting(wait, timeout).write(resume)
    if prepare:
        place = folder.path.resolve()
        given = f"--run-config 'folder=\"{place}\"'"
        say(f"made {place}; start it with: flwr run {place / 'app'} SUPERLINK --stream {given}")
        return
    serving.serve(folder, options, train, say)
