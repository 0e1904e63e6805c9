"""`fedkin serve`: a SuperLink, the sites that join it, and a run over them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from fedkin.engines.flower.certificates import ServerFiles
from fedkin.engines.flower.exchange import WaitPolicy
from fedkin.engines.flower.keys import endings
from fedkin.engines.flower.link import APP, Link
from fedkin.engines.flower.reach import is_loopback
from fedkin.errors import FedkinError
from fedkin.runs.folder import RunFolder, next_folder
from fedkin.runs.provenance import BY_SERVE, RESUME_SERVED, RUNS, versions
from fedkin.runs.sites.plan import Plan, read_serve_config, served_config
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

    @property
    def resume(self) -> str:
        """The command that continues a run in the same place, up to its folder."""
        given = {"--host": self.host, "--port": self.port, "--patience": self.patience}
        usual = {"--host": ServeOptions.host, "--port": ServeOptions.port}
        usual |= {"--patience": ServeOptions.patience}
        words = [f"{key} {value}" for key, value in given.items() if value != usual[key]]
        words += [f"--certs {shlex.quote(str(self.certs))}"] if self.certs else []
        words += ["--insecure"] if self.insecure else []
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


def prepare(
    config_path: Path,
    clients: int,
    waiting: WaitPolicy,
    out: Path | None,
    keys: ServerFiles | None = None,
    secure_sum: bool = False,
    at_least: int | None = None,
) -> RunFolder:
    """The folder of a new served run."""
    if clients < 1:
        raise FedkinError(f"--clients must be at least 1, not {clients}")
    config, agreement = read_serve_config(config_path)
    secure = chosen(config, clients, keys, secure_sum, at_least)
    path = out or next_folder(RUNS, f"{config.method}-sites")
    made_with = {**versions(), "by": BY_SERVE}
    folder = RunFolder.create(path, served_config(config, agreement, made_with))
    replace(Plan.new(path.name, clients, agreement, waiting), secure=secure).write(path)
    (path / "app").mkdir()
    write_text(path / "app" / "pyproject.toml", APP)
    return folder


def serve(
    folder: RunFolder, options: ServeOptions, train: Callable[[Trainer], None], say: Say
) -> None:
    """Start or resume the run of a folder; `train` runs the rounds and shows progress."""
    (config, _), keys = read_serve_config(folder.path / "config.toml"), options.keys()
    Plan.read(folder.path)
    link = Link(folder.path / "flower", options.host, options.port, keys)
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
    except httpx.HTTPError as error:
        raise FedkinError(
            f"the SuperLink does not answer any more ({error}; see {folder.path}/flower): "
            f"continue with `{options.resume} {folder.path}`"
        ) from None
    finally:
        link.stop()


def _look_at_keys(link: Link, options: ServeOptions, say: Say) -> None:
    """Let in sites that were signed meanwhile, and shut out those revoked."""
    if options.certs is None:
        return
    try:
        for sentence in link.admit(ServerFiles.of(options.certs)):
            say(sentence)
    except (FedkinError, FileNotFoundError):
        return  # a folder in the middle of a change: looked at again in a second
