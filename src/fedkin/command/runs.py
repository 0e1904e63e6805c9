"""What the commands do, once their arguments are read."""

from __future__ import annotations

import errno
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from fedkin.command import folds
from fedkin.command.screen import (
    console,
    measured,
    plain_table,
    progress,
    say,
    show_capacities,
    show_models,
    show_results,
)
from fedkin.core.problem import Problem
from fedkin.data import ClientData, checksum
from fedkin.data.notes import in_few_lines
from fedkin.engines import need_ray
from fedkin.errors import DivergedError, FedkinError
from fedkin.methods import Method
from fedkin.methods.registry import get_method
from fedkin.runs import capacity, newcomers, own_models
from fedkin.runs.comparison import in_folds
from fedkin.runs.config import RunConfig, make_config, read_config
from fedkin.runs.early import went_back
from fedkin.runs.folder import RunFolder, next_folder, read_strategy
from fedkin.runs.groups import Records, read_stored_config
from fedkin.runs.listing import result_rows
from fedkin.runs.measures import measure_named
from fedkin.runs.options import merge, parse
from fedkin.runs.plugins import refuse_brought, short_name
from fedkin.runs.privacy_file import guarantee_in_words, read_privacy
from fedkin.runs.provenance import BY_PYTHON, BY_SERVE, RESUME_SERVED, RUNS, complete, versions
from fedkin.runs.settings import Settings
from fedkin.runs.trackers import make_tracker
from fedkin.runs.training import Trainer
from fedkin.runs.user_code import known_method
from fedkin.toml import read_toml
from fedkin.version import __version__

if TYPE_CHECKING:
    from fedkin.engines.ray.shards import Shards  # which needs Ray

# errors of a disk that cannot be written any more
STUCK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)


def run(
    what: str, words: Sequence[str], out: Path | None, quiet: bool, track: Sequence[str] = ()
) -> None:
    """Train by the name of a method or by a config file."""
    for name in track:  # before anything is made
        make_tracker(name)
    config = config_of(what, words)
    # a run repeated without changes gives the same numbers exactly
    if in_folds(config):
        folds.run(config, out or default_folder(config), quiet, track)
        return
    again = what.endswith(".toml") and not words
    planned = read_strategy(Path(what).parent) if again else {}
    with data_of(config) as (data, digest, shards):
        folder = out or default_folder(config)
        finish(begin(config, data, folder, planned, digest, shards), quiet, track=track)


@contextmanager
def data_of(config: RunConfig) -> Iterator[tuple[ClientData, str, Shards | None]]:
    """A run's data and their checksum; on a cluster, shards that read them in our place."""
    if config.engine != "ray":
        data = config.make_data()
        yield data, checksum(data), None
        return
    need_ray()
    from fedkin.runs.cluster import described

    shards, data, digest = described(config, say)
    try:
        yield data, digest, shards
    finally:
        shards.close()


def config_of(what: str, words: Sequence[str]) -> RunConfig:
    """The config of a method by name or of a file, with options in place of its values."""
    if what.endswith(".toml"):
        config = read_config(Path(what))
        given, values = parse(config.method, words), config.model_dump()
        if "model_column" in given.get("model", {}):  # another column than theirs
            values["model"]["client_models"] = {}
        return make_config(merge(values, given)) if given else config
    method = known_method(what)
    get_method(method)
    return make_config({"method": method, **parse(method, words)})


def default_folder(config: RunConfig) -> Path:
    source = Path(config.data.path).stem if config.data.path else config.data.name
    return next_folder(RUNS, f"{short_name(config.method)}-{source}")


def begin(
    config: RunConfig,
    data: ClientData,
    out: Path,
    planned: Mapping[str, Any] | None = None,
    digest: str | None = None,
    shards: Shards | None = None,
) -> Trainer:
    """A trainer with a new run folder, which is removed again if it cannot start."""
    problem, method = config.make_problem(data), config.make_method()
    for note in in_few_lines(data.notes):
        say(f"note: {note}")
    folder = RunFolder.create(out, complete(config, data, digest))
    try:
        folder.log(f"begun with fedkin {__version__}, torch {torch.__version__}")
        for note in data.notes:
            folder.log(note)
        if planned:
            folder.keep_strategy(planned)
        return _trainer(problem, method, config.settings(), folder, shards)
    except BaseException:
        folder.discard()
        raise


def resume(
    path: Path,
    quiet: bool,
    elsewhere: Mapping[str, Any] | None = None,
    track: Sequence[str] = (),
) -> None:
    """Continue a run from its last valid checkpoint, in another engine if that is asked for."""
    with RunFolder.open(path) as folder:
        made_with = read_stored_config(path).made_with
        if made_with.get("by") == BY_PYTHON:
            raise FedkinError(
                f"{path} was started from Python: continue it there with "
                f"train(problem, method, folder={str(path)!r}, resume=True)"
            )
        if made_with.get("by") == BY_SERVE:
            raise FedkinError(
                f"{path} is a run over sites: continue with `{RESUME_SERVED} {path}` and the "
                "other options it was started with"
            )
        refuse_brought(read_toml(path / "config.toml"), path)
        config = read_config(path / "config.toml")
        if elsewhere:
            config = make_config(merge(config.model_dump(), dict(elsewhere)))
        if in_folds(config):
            folder.close()
            folds.resume(config, path, made_with.get("data_sha256", ""), quiet, track)
            return
        with data_of(config) as (data, digest, shards):
            if made_with.get("data_sha256", "") not in ("", digest):
                raise FedkinError(
                    f"the data of {path} have changed since it began (the checksum differs): "
                    "restore the data, or start a new run"
                )
            problem, method = config.make_problem(data), config.make_method()
            trainer = _trainer(problem, method, config.settings(), folder, shards)
            _go_on(trainer, made_with, quiet, track)


def _go_on(
    trainer: Trainer, made_with: Mapping[str, Any], quiet: bool, track: Sequence[str]
) -> None:
    folder = trainer.folder
    assert folder is not None
    for name, version in versions().items():
        if made_with.get(name, version) != version:
            say(f"note: begun with {name} {made_with[name]}, continuing with {version}: the last "
                "digits may differ from an uninterrupted run")  # fmt: skip
    for sentence in trainer.resume():
        say(f"note: {sentence}")
        folder.log(sentence)
    if trainer.done:
        say(f"{folder.path} is finished: {trainer.round} rounds")
    else:
        folder.log(f"resumed after round {trainer.round}")
    finish(trainer, quiet, track=track)


def _trainer(
    problem: Problem, method: Method, settings: Settings, folder: RunFolder, shards: Shards | None
) -> Trainer:
    if shards is None:
        return Trainer(problem, method, settings, folder)
    from fedkin.runs.cluster import Cluster

    cluster = Cluster(shards, problem, settings, folder)
    return Trainer(problem, method, settings, folder, cluster=cluster)


def finish(
    trainer: Trainer,
    quiet: bool,
    resume: str = "fedkin resume",
    track: Sequence[str] = (),
    lines: bool = False,
) -> None:
    """Run the remaining rounds, then show the result or how to continue.

    `lines`: where there is no terminal, progress is told in plain lines.
    """
    assert trainer.folder is not None
    folder, total = trainer.folder.path, trainer.settings.rounds
    go_on = f"continue with: {resume} {shlex.quote(str(folder))}"
    stopped: list[int] = []
    try:
        with (
            stop_politely(trainer) as stopped,
            progress(trainer.method.name, trainer.round, total, quiet, lines) as show,
        ):
            trainer.run(show, [make_tracker(name, folder) for name in track])
            if not trainer.done:
                trainer.save()
            ended = "finished" if trainer.done else f"stopped after round {trainer.round}"
            trainer.folder.log(ended)
    except DivergedError as error:
        saved = trainer.saved_round
        kept = f"the checkpoint of round {saved} is kept" if saved else "no checkpoint was written"
        trainer.folder.log(str(error))
        raise DivergedError(f"{error}; {kept} in {folder}") from None
    except OSError as error:
        if error.errno not in STUCK:
            raise
        raise FedkinError(
            f"cannot write in {folder}: {error.strerror}; what was saved last is kept: "
            f"fix that and {go_on}"
        ) from None
    except KeyboardInterrupt:
        say(f"stopped immediately; {go_on}")
        raise SystemExit(128 + (stopped[-1] if stopped else signal.SIGINT)) from None
    if not trainer.done:
        say(f"stopped after round {trainer.round}; {go_on}")
        raise SystemExit(128 + stopped[0])
    show_results(result_rows(folder), Records(folder).measures)
    if went_back(folder):
        say(f"the models are those of round {trainer.round}, the best by validation data")
    if (folder / capacity.TABLE).is_file():
        show_capacities(capacity.read_levels(folder))
    if (folder / own_models.TABLE).is_file():
        measure = Records(folder).measures[0]
        show_models(own_models.scores_by_model(folder, measure.name), measure)
    if never := capacity.words_on_untrained(folder):
        say(f"note: {never}")
    if (folder / newcomers.TABLE).is_file():
        show_newcomers(newcomers.read_newcomers(folder))
    told = read_privacy(folder)
    if told is not None:
        say(f"privacy: {guarantee_in_words(told)}")
        if trainer.round < total:
            say(f"ended after round {trainer.round}: the privacy budget is spent")
    say(f"run folder: {folder}")


def show_newcomers(table: pd.DataFrame) -> None:
    """Means over the clients that were kept out, after some steps at home and alone."""
    means = newcomers.summary(table)
    titles = [str(title) for title in means.columns[1:]]
    cells = [
        [str(row["steps"]),
         *(measured(row[t], measure_named(t)) for t in titles)]
        for row in means.to_dict("records")
    ]  # fmt: skip
    console.print(plain_table(["newcomers: steps at home", *titles], cells, numbers_from=1))


@contextmanager
def stop_politely(trainer: Trainer) -> Iterator[list[int]]:
    """Ctrl-C (or SIGTERM) finishes the round and saves; a second one stops immediately.

    Yields the list of signals received.
    """
    received: list[int] = []

    def ask_to_stop(number: int, _: Any) -> None:
        received.append(number)
        if trainer.stopping:
            raise KeyboardInterrupt
        trainer.stopping = True
        say("stopping after this round (Ctrl-C again: immediately)")

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ask_to_stop) for number in signals]
    try:
        yield received
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
