"""A run that is tested by folds: trained once for each, its scores pooled."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from fedkin.command.screen import say, show_results
from fedkin.command.watching import watched
from fedkin.data import checksum
from fedkin.data.notes import in_few_lines
from fedkin.errors import FedkinError
from fedkin.runs.comparison import Folded, Watch, fold_tasks, perform
from fedkin.runs.config import RunConfig
from fedkin.runs.groups import Records
from fedkin.runs.listing import result_rows
from fedkin.runs.provenance import complete


def run(config: RunConfig, out: Path, quiet: bool, track: Sequence[str] = ()) -> None:
    """Train on every fold, as many as can be at once, and show the pooled result."""
    folded = _folded(config, out)
    for note in in_few_lines(folded.tasks[0].problem.data.notes):
        say(f"note: {note}")
    finish(folded, quiet, track)


def resume(
    config: RunConfig, path: Path, digest: str, quiet: bool, track: Sequence[str] = ()
) -> None:
    """Continue such a run: finished folds are not repeated."""
    folded = _folded(config, path)
    if digest not in ("", checksum(folded.tasks[0].problem.data)):
        raise FedkinError(
            f"the data of {path} have changed since it began (the checksum differs): "
            "restore the data, or start a new run"
        )
    finish(folded, quiet, track)


def finish(folded: Folded, quiet: bool, track: Sequence[str]) -> None:
    """Run the folds that are left; Ctrl-C saves them and tells how to continue."""
    left, rounds = folded.left, folded.config.rounds
    title = f"{folded.tasks[0].label}, {len(left)} folds"
    with watched(title, len(left) * rounds, quiet) as (advance, stop):
        errors = perform(left, Watch(advance, stop, track))
    for error in errors.values():
        raise error
    if not folded.finish():
        say(f"stopped; continue with: fedkin resume {shlex.quote(str(folded.path))}")
        raise SystemExit(130)
    show_results(result_rows(folded.path), Records(folded.path).measures)
    say(f"every row was tested once, in {len(folded.tasks)} folds")
    say(f"run folder: {folded.path}")


def _folded(config: RunConfig, path: Path) -> Folded:
    return fold_tasks(config.method, path, config, lambda own: own.make_data(), complete)
