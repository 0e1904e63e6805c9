"""What the commands do, once their arguments are read."""

from __future__ import annotations

import platform
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.table import Table

from fedkin import __version__
from fedkin.config import RunConfig, make_config, read_config
from fedkin.data import ClientData, DataConfig, checksum, describe, load, plot, summary
from fedkin.errors import DivergedError, FedkinError
from fedkin.options import merge, parse
from fedkin.registry import get_method
from fedkin.results.folder import RunFolder, next_folder
from fedkin.screen import console, percent, progress, result_table
from fedkin.tensors import write_text
from fedkin.training import Trainer
from fedkin.validation import validated

RUNS = Path("runs")


def run(what: str, words: Sequence[str], out: Path | None, quiet: bool) -> None:
    """Train as a method's name or a config file says."""
    config = config_of(what, words)
    trainer = begin(config, config.make_data(), out or default_folder(config))
    finish(trainer, quiet)


def config_of(what: str, words: Sequence[str]) -> RunConfig:
    """The config of a method by name or of a file, with options in place of its values."""
    if what.endswith(".toml"):
        config = read_config(Path(what))
        given = parse(config.method, words)
        return make_config(merge(config.model_dump(), given)) if given else config
    get_method(what)
    return make_config({"method": what, **parse(what, words)})


def default_folder(config: RunConfig) -> Path:
    source = Path(config.data.path).stem if config.data.path else config.data.name
    return next_folder(RUNS, f"{config.method}-{source}")


def begin(config: RunConfig, data: ClientData, out: Path) -> Trainer:
    """A trainer with a new run folder."""
    problem, method = config.make_problem(data), config.make_method()
    for note in data.notes:
        console.print(f"[yellow]note:[/] {note}")
    folder = RunFolder.create(out, complete(config, data))
    for note in data.notes:
        folder.log(note)
    return Trainer(problem, method, config.settings(), folder)


def complete(config: RunConfig, data: ClientData) -> str:
    """The config with nothing left to defaults, and what it was made with."""
    full = config.model_copy(update={"data": config.data.resolved()})
    return full.to_toml(
        {
            "fedkin": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "data_sha256": checksum(data),
        }
    )


def resume(path: Path, quiet: bool) -> None:
    """Continue a run where its last sound checkpoint stands."""
    folder = RunFolder.open(path)
    config = read_config(path / "config.toml")
    data = config.make_data()
    trainer = Trainer(config.make_problem(data), config.make_method(), config.settings(), folder)
    for sentence in trainer.resume():
        console.print(f"[yellow]{sentence}; using the one before[/]")
        folder.log(sentence)
    if trainer.round >= config.rounds:
        console.print(f"{path} is finished: {trainer.round} rounds")
    finish(trainer, quiet)


def finish(trainer: Trainer, quiet: bool) -> None:
    """Run the rest of the rounds, then show the result or how to go on."""
    assert trainer.folder is not None
    folder, total = trainer.folder.path, trainer.settings.rounds
    with stop_politely(trainer), progress(trainer.method.name, trainer.round, total, quiet) as show:
        try:
            trainer.run(show)
        except DivergedError as error:
            saved = f"the last good checkpoint is in {folder / 'checkpoint'}"
            raise DivergedError(f"{error}; {saved}") from None
    if trainer.round < total:
        trainer.save()
        console.print(f"stopped after round {trainer.round}; go on with: fedkin resume {folder}")
        raise SystemExit(130)
    console.print(result_table(result_rows(folder)))
    console.print(f"run folder: {folder}")


@contextmanager
def stop_politely(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C finishes the round and saves; a second one stops at once."""

    def ask_to_stop(*_: Any) -> None:
        if trainer.stopping:
            raise KeyboardInterrupt
        trainer.stopping = True
        console.print("stopping after this round (Ctrl-C again: at once)")

    before = signal.signal(signal.SIGINT, ask_to_stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def result_rows(folder: Path) -> list[dict[str, float | str | None]]:
    """The last evaluation of a run, with local-only training beside it."""
    metrics = pd.read_csv(folder / "metrics.csv")
    config = read_config(folder / "config.toml")
    last = metrics.iloc[-1]
    seconds = float(pd.read_csv(folder / "timing.csv")["seconds"].sum())
    row: dict[str, float | str | None] = {
        "method": config.method,
        "mean": _value(last["personal_accuracy"]),
        "worst": _value(last["worst_tenth"]),
        "best": _value(last["best"]),
        "better": _value(last["better_than_alone"]),
        "mb_up": float(last["bytes_up"]) / 1e6,
        "mb_down": float(last["bytes_down"]) / 1e6,
        "seconds": seconds,
    }
    return [row]


def _value(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def list_runs(folder: Path) -> None:
    """One row per run folder: method, data, rounds done, personal accuracy."""
    if not folder.is_dir():
        raise FedkinError(f"there is no folder {folder}: name the folder that holds your runs")
    table = Table("run", "method", "data", "rounds", "personal accuracy", "alone")
    for path in sorted(folder.rglob("config.toml"), key=lambda p: p.stat().st_mtime):
        config = read_config(path)
        metrics = path.with_name("metrics.csv")
        frame = pd.read_csv(metrics) if metrics.exists() else pd.DataFrame()
        done = int(frame["round"].iloc[-1]) if len(frame) else 0
        known = frame.dropna(subset="personal_accuracy") if len(frame) else frame
        last = known.iloc[-1] if len(known) else {}
        table.add_row(
            str(path.parent),
            config.method,
            config.data.name,
            f"{done}/{config.rounds}",
            percent(_value(last.get("personal_accuracy"))),
            percent(_value(last.get("local_accuracy"))),
        )
    console.print(table)


def partition(
    values: dict[str, Any], picture: Path | None, details: bool, seed: int, csv: Path | None
) -> None:
    """Deal a data set to clients and show the result."""
    start = time.perf_counter()
    data = load(validated(DataConfig, values["data"], "data"), seed)
    frame = describe(data)
    for name, value in summary(data).items():
        console.print(f"{name}: {value}")
    if details:
        console.print(frame.to_string())
    if csv:
        write_text(csv, frame.to_csv())
    if picture:
        plot(data, picture)
        console.print(f"picture: {picture}")
    console.print(f"({time.perf_counter() - start:.1f} s)")
