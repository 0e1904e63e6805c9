"""Training in one call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkin.core.problem import Problem
from fedkin.engines import need_ray
from fedkin.errors import FedkinError
from fedkin.methods import Method
from fedkin.methods.registry import with_models
from fedkin.runs.folder import RunFolder
from fedkin.runs.progress import OnRound, followers
from fedkin.runs.provenance import BY_PYTHON
from fedkin.runs.run import Run
from fedkin.runs.settings import Settings, make_settings
from fedkin.runs.trackers import Tracker, make_tracker
from fedkin.runs.training import Trainer
from fedkin.runs.validation import make_method, refuse_options
from fedkin.toml import to_toml

if TYPE_CHECKING:
    from fedkin.runs.cluster import Cluster  # which needs Ray


def train(
    problem: Problem,
    method: Method | str,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    progress: bool | None = None,
    trackers: Sequence[Tracker | str] = (),
    **settings: Any,
) -> Run:
    """Train one model per client and evaluate it on the client's own held-out data.

    `method` is a Method or its name; `settings` are those of `Settings` (rounds, seed,
    fraction, eval_every, engine, ...) and, with a name, options of the method: lr, or rates for
    its form with models of different sizes. With `resume` a stopped run continues in its folder;
    pass the same problem, method and settings again.

    `on_round` is called after every round with its number and all `measures`. In a notebook a
    bar shows the progress, unless `progress=False`. `trackers` are told every round too: by name
    (tensorboard, mlflow, wandb), or objects of your own (see `fedkin.Tracker`).
    """
    own = {f.name for f in fields(Settings)}
    options = {name: settings.pop(name) for name in set(settings) - own}
    if isinstance(method, str):
        name = with_models(method) if problem.architectures is not None else method
        chosen = make_method(name, options)
    else:
        chosen = method
    if not isinstance(method, str) and options:
        refuse_options(method, options, sorted(own))
    checked, kept = make_settings(settings), None
    if resume and not folder:
        raise FedkinError("resume needs the folder of the run to continue")
    if folder and resume:
        kept = RunFolder.open(Path(folder))
    elif folder:
        about = {"method": chosen.name, **asdict(checked), "options": asdict(chosen)}
        kept = RunFolder.create(Path(folder), to_toml({**about, "made_with": {"by": BY_PYTHON}}))
    with kept or nullcontext():
        cluster = cluster_of(problem, checked, kept)
        trainer = Trainer(problem, chosen, checked, kept, cluster=cluster)
        place = kept.path if kept else None
        told = [make_tracker(t, place) if isinstance(t, str) else t for t in trackers]
        if kept and resume:
            for sentence in trainer.resume():
                kept.log(sentence)
        return trainer.run(followers(chosen.name, on_round, progress), told)


def cluster_of(problem: Problem, settings: Settings, folder: RunFolder | None) -> Cluster | None:
    """The Ray cluster that holds a problem's clients, where the settings ask for one."""
    if settings.engine != "ray":
        return None
    need_ray()
    from fedkin.runs.cluster import Cluster, in_memory

    return Cluster(in_memory(problem, settings), problem, settings, folder)
