"""`fedkin join`: take part as a site, or as the sites of a machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedkin.command.site_options import Certs, Insecure, LogLevel, Patience, need_flower
from fedkin.errors import FedkinError


def join(
    name: Annotated[str, typer.Option(help="this site's name, or this machine's with --sites")],
    data: Annotated[
        Path | None, typer.Option(help="this site's .csv, .parquet or .npz file")
    ] = None,
    sites: Annotated[
        Path | None,
        typer.Option(
            help="a folder with such a file for every site of this machine (and NAME.toml, "
            "where a site has limits of its own): all of them in one process"
        ),
    ] = None,
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
    log_level: LogLevel = "info",
    leave: Annotated[
        bool, typer.Option("--leave", help="only tell the server that this site leaves for good")
    ] = False,
) -> None:
    """Take part in a run with this site's own data, which stay here.

    Before anything is read you are shown who asks for what and asked whether you agree; a service
    says --yes, and names the columns that may be used (or a --policy that does).

    Examples:
      fedkin join --data my.csv --name clinic-a --columns age,bmi,sex --target outcome --check
      fedkin join --server server.example.org:8000 --data my.csv --name clinic-a --certs clinic-a
      fedkin join --server ... --data my.csv --name clinic-a --policy site.toml --yes
      fedkin join --server ... --sites wards --name north --policy site.toml --yes
      fedkin join --server ... --data my.csv --name clinic-a --certs clinic-a --leave
    """
    need_flower()
    from fedkin.command.screen import say
    from fedkin.engines.flower.logs import LogFile, Voice, check_level
    from fedkin.runs.settings import check_device
    from fedkin.runs.sites import checking, joining
    from fedkin.runs.sites.machine import Machine, make_machine, to_check
    from fedkin.runs.sites.names import check_name
    from fedkin.runs.sites.site import SiteWorker
    from fedkin.runs.sites.sums import secure_site

    check_name(name)
    check_level(log_level)
    check_device(device)
    if (data is None) == (sites is None):
        raise FedkinError("give this site's file with --data, or a folder of them with --sites")
    if data is not None and not data.is_file():
        raise FedkinError(f"there is no file {data}")
    limits = checking.limits(policy, columns, target)
    place = (home or Path(f"fedkin-{name}")).resolve()
    if check:
        for one, path, own in to_check(name, data, sites, limits):
            for line in checking.report(one, path, own, config):
                say(line)
        return
    keys = joining.keys_for(server, certs, insecure)
    if sites is not None and secure_at_least is not None:
        raise FedkinError("--secure-at-least needs a certificate for each site: not --sites")
    place.mkdir(parents=True, exist_ok=True)
    voice = Voice(say, LogFile(place / "site.log", log_level))
    site: SiteWorker | Machine
    if sites is not None:
        site = make_machine(name, sites, place, device, voice, limits, yes or leave, server)
        next(iter(site.sites.values())).lines = not sys.stdout.isatty()
    else:
        assert data is not None
        agree = checking.agree_by(limits, data, yes, say) if not leave else lambda words: False
        secure = secure_site(name, keys, secure_at_least)
        site = SiteWorker(name, data.resolve(), place, device, voice, secure, limits, agree, server)
        site.lines = not sys.stdout.isatty()
    site.leaving = leave
    joining.join(joining.JoinOptions(server, site, keys, poll, stay, patience, log_level), voice)
