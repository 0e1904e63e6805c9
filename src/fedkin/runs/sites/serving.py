"""`fedkin serve`: a SuperLink, the sites that join it, and a run over them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import httpx
from torch import Tensor

from fedkin.engines.flower.certificates import ServerFiles
from fedkin.engines.flower.exchange import WaitPolicy
from fedkin.engines.flower.keys import endings
from fedkin.engines.flower.link import APP, Link
from fedkin.engines.flower.logs import LogFile, Voice
from fedkin.engines.flower.reach import is_loopback
from fedkin.errors import FedkinError
from fedkin.runs.folder import RunFolder, next_folder
from fedkin.runs.provenance import BY_SERVE, RESUME_SERVED, RUNS, versions
from fedkin.runs.sites.plan import Plan, read_serve_config, served_config
from fedkin.runs.sites.roster import why_fixed
from fedkin.runs.sites.schedule import keep_start, model_of, repeat
from fedkin.runs.sites.served import Say, make_trainer
from fedkin.runs.sites.sums import chosen
from fedkin.runs.training import Trainer
from fedkin.tensors import write_text


@dataclass(frozen=True)
class ServeOptions:
    """Where and how a server listens. `certs` is None: plain connections, on loopback only
    unless `insecure` declares that something else protects them."""

    host: str = "127.0.0.1"
    port: int = 8000
    certs: Path | None = None
    insecure: bool = False
    patience: float = 3600.0
    log_level: str = "info"

    @property
    def resume(self) -> str:
        """The command that continues a run in the same place, up to its folder."""
        given = {"--host": self.host, "--port": self.port, "--patience": self.patience}
        usual = {"--host": ServeOptions.host, "--port": ServeOptions.port}
        usual |= {"--patience": ServeOptions.patience}
        words = [f"{key} {value}" for key, value in given.items() if value != usual[key]]
        words += [f"--certs {shlex.quote(str(self.certs))}"] if self.certs else []
        words += ["--insecure"] if self.insecure else []
        words += [f"--log-level {self.log_level}"] if self.log_level != "info" else []
        start, _, end = RESUME_SERVED.rpartition(" ")
        return " ".join([start, *words, end])

    def keys(self) -> ServerFiles | None:
        if self.certs is not None:
            return ServerFiles.of(self.certs)
        if not is_loopback(self.host) and not self.insecure:
            raise FedkinError(
                f"{self.host} can be reached over the network: make certificates with "
                "`fedkin certs` and give their folder with --certs (or use --insecure where "
                "something else encrypts and authenticates)"
            )
        return None


@dataclass(frozen=True)
class Wanted:
    """A run that is to be served: its config, how many sites it waits for, and how."""

    config: Path
    clients: int
    waiting: WaitPolicy = field(default_factory=WaitPolicy)
    out: Path | None = None
    keys: ServerFiles | None = None
    secure_sum: bool = False
    at_least: int | None = None
    open: bool = False


def prepare(wanted: Wanted) -> RunFolder:
    """The folder of a new served run."""
    if wanted.clients < 1:
        raise FedkinError(f"--clients must be at least 1, not {wanted.clients}")
    config, agreement = read_serve_config(wanted.config)
    secure = chosen(config, wanted.clients, wanted.keys, wanted.secure_sum, wanted.at_least)
    fixed = why_fixed(config) if wanted.open else None
    if wanted.open and secure is not None:
        fixed = "secure sums are of sites that are known from the start"
    if fixed is not None:
        raise FedkinError(f"sites cannot join this run later: {fixed}; leave --open out")
    path = wanted.out or next_folder(RUNS, f"{config.method}-sites")
    made_with = {**versions(), "by": BY_SERVE}
    folder = RunFolder.create(path, served_config(config, agreement, made_with))
    plan = Plan.new(path.name, wanted.clients, agreement, wanted.waiting)
    replace(plan, secure=secure, open=wanted.open).write(path)
    (path / "app").mkdir()
    write_text(path / "app" / "pyproject.toml", APP)
    return folder


def serve_every(
    wanted: Wanted, every: float, options: ServeOptions, train: Callable[[Trainer], None], say: Say
) -> NoReturn:
    """Serve a run, then another from its model every so many seconds, until a signal comes.

    With `out` its folders are `out-001`, `out-002`, ...
    """

    def run(model: Tensor | None) -> Tensor | None:
        out = next_folder(wanted.out.parent, wanted.out.name) if wanted.out else None
        folder = prepare(replace(wanted, out=out))
        if model is not None:
            keep_start(folder.path, model)
            say("it starts from the model that the last run ended with")
        try:
            return model_of(serve(folder, options, train, say))
        finally:
            folder.close()

    repeat(run, every, say)


def serve(
    folder: RunFolder, options: ServeOptions, train: Callable[[Trainer], None], say: Say
) -> Trainer:
    """Start or resume the run of a folder; `train` runs the rounds and shows progress."""
    (config, _), keys = read_serve_config(folder.path / "config.toml"), options.keys()
    say = Voice(say, LogFile(folder.path / "server.log", options.log_level))
    Plan.read(folder.path)
    link = Link(folder.path / "flower", options.host, options.port, keys, options.log_level)
    try:
        if keys:
            link.register(keys.sites)
        say(f"serving at {link.place.address} {'with TLS' if keys else 'without TLS'}")
        for sentence in endings(keys.authority, keys.certificate) if keys else ():
            say(f"note: {sentence}")
        with link.run() as grid:
            trainer = make_trainer(
                grid, folder, config, keys is not None, options.patience, say, options.resume,
                look=lambda: _look_at_keys(link, options, say),
            )  # fmt: skip
            train(trainer)
        if trainer.unfinished:
            raise FedkinError(
                f"no word at the end from {', '.join(trainer.unfinished)}, so they may be without "
                "their models: let them join again and continue with "
                f"`{options.resume} {folder.path}`"
            )
        return trainer
    except httpx.HTTPError as error:
        raise FedkinError(
            f"the SuperLink does not answer any more ({error}; see {folder.path}/flower): "
            f"continue with `{options.resume} {folder.path}`"
        ) from None
    finally:
        link.stop()
        say.file.close()


def _look_at_keys(link: Link, options: ServeOptions, say: Say) -> None:
    """Let in sites that were signed meanwhile, and shut out those revoked."""
    if options.certs is None:
        return
    try:
        for sentence in link.admit(ServerFiles.of(options.certs)):
            say(sentence)
    except (FedkinError, FileNotFoundError):
        return  # a folder in the middle of a change: looked at again in a second
