"""A run that is tested by folds: trained once for each, its scores pooled."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedkin.command.screen import say, show_results
from fedkin.command.watching import watched
from fedkin.data import ClientData, checksum
from fedkin.data.notes import in_few_lines
from fedkin.engines import need_ray
from fedkin.errors import FedkinError
from fedkin.runs.comparison import Folded, fold_tasks
from fedkin.runs.config import RunConfig
from fedkin.runs.groups import Records
from fedkin.runs.listing import result_rows
from fedkin.runs.provenance import complete
from fedkin.runs.tasks import Watch, perform

if TYPE_CHECKING:
    from fedkin.engines.ray.shards import Shards  # which needs Ray


def run(config: RunConfig, out: Path, quiet: bool, track: Sequence[str] = ()) -> None:
    """Train on every fold, as many as can be at once, and show the pooled result."""
    with _folded(config, out) as (folded, _):
        for note in in_few_lines(folded.tasks[0].problem.data.notes):
            say(f"note: {note}")
        finish(folded, quiet, track)


def resume(
    config: RunConfig, path: Path, digest: str, quiet: bool, track: Sequence[str] = ()
) -> None:
    """Continue such a run: finished folds are not repeated."""
    with _folded(config, path) as (folded, found):
        if digest not in ("", found):
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


@contextmanager
def _folded(config: RunConfig, path: Path) -> Iterator[tuple[Folded, str]]:
    """The runs of all folds, and the checksum of the first one's data."""
    method = config.method
    if config.engine != "ray":
        folded = fold_tasks(method, path, config, lambda own: own.make_data(), complete)
        yield folded, checksum(folded.tasks[0].problem.data)
        return
    need_ray()
    from fedkin.runs.cluster import described

    shards: dict[int, Shards] = {}
    digests: dict[int, str] = {}

    def data_of(own: RunConfig) -> ClientData:
        fold = own.data.fold or 1
        shards[fold], data, digests[fold] = described(own, say)
        return data

    def text(own: RunConfig, data: ClientData) -> str:
        return complete(own, data, digests[own.data.fold or 1])

    try:
        yield fold_tasks(method, path, config, data_of, text, shards), digests[1]
    finally:
        for one in shards.values():
            one.close()
