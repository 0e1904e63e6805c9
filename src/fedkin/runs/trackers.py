"""Trackers: a run's measures sent, round by round, to TensorBoard, MLflow or Weights & Biases.

A tracker is any object with the three methods of `Tracker`, so a tracker of one's own is a
small class. One that fails is left out with a warning: it never stops a run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from fedkin.errors import FedkinError, unknown

# what services take of a setting's text
LONGEST = 250
PROJECT = "fedkin"


class Tracker(Protocol):
    """What a run tells: its name and settings, the measures of every round, its end."""

    def begin(self, name: str, settings: Mapping[str, Any], done: int) -> None:
        """Before the first round, or after `done` rounds of a run that is resumed."""

    def log(self, number: int, measures: Mapping[str, float]) -> None:
        """After round `number`: all measures that are known then."""

    def end(self, finished: bool) -> None:
        """After the last round; `finished` is false for a run that was stopped or failed."""


class TensorBoard:
    """Event files, readable while the run goes on: `tensorboard --logdir RUN`."""

    def __init__(self, folder: Path | None = None) -> None:
        need("tensorboard", "tensorboard")
        self.folder = folder or Path("runs") / "tensorboard" / time.strftime("%Y%m%d-%H%M%S")

    def begin(self, name: str, settings: Mapping[str, Any], done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # here: only where it is installed

        # events of rounds after the checkpoint are hidden: these rounds come again
        self.writer = SummaryWriter(str(self.folder), purge_step=done + 1 if done else None)
        about = "\n".join(f"    {key} = {value}" for key, value in settings.items())
        self.writer.add_text("settings", about)

    def log(self, number: int, measures: Mapping[str, float]) -> None:
        for name, value in measures.items():
            self.writer.add_scalar(name, value, number)
        self.writer.flush()

    def end(self, finished: bool) -> None:
        self.writer.close()


class MLflow:
    """A run of the MLflow experiment `fedkin`, where MLFLOW_TRACKING_URI says (or ./mlruns)."""

    def __init__(self, folder: Path | None = None) -> None:
        need("mlflow", "mlflow")

    def begin(self, name: str, settings: Mapping[str, Any], done: int) -> None:
        from mlflow import MlflowClient

        # a client and not mlflow.start_run, which has one run at a time
        self.client = MlflowClient()
        found = self.client.get_experiment_by_name(PROJECT)
        place = found.experiment_id if found else self.client.create_experiment(PROJECT)
        self.id = self.client.create_run(place, run_name=name).info.run_id
        for key, value in settings.items():
            self.client.log_param(self.id, key, str(value)[:LONGEST])

    def log(self, number: int, measures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        rows = [Metric(name, value, now, number) for name, value in measures.items()]
        self.client.log_batch(self.id, metrics=rows)

    def end(self, finished: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


class WeightsAndBiases:
    """A run of the W&B project `fedkin`; WANDB_MODE=offline keeps it in files."""

    def __init__(self, folder: Path | None = None) -> None:
        need("wandb", "wandb")
        self.folder = folder

    def begin(self, name: str, settings: Mapping[str, Any], done: int) -> None:
        import wandb

        self.run = wandb.init(
            project=PROJECT, name=name, config=dict(settings), dir=self.folder,
            reinit="create_new", settings=wandb.Settings(silent=True, console="off"),
        )  # fmt: skip

    def log(self, number: int, measures: Mapping[str, float]) -> None:
        self.run.log(dict(measures), step=number)

    def end(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, Callable[[Path | None], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def make_tracker(name: str, folder: Path | None = None) -> Tracker:
    """A tracker by name; `folder` is the run's, where files go."""
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    inside = folder / "tensorboard" if folder and name == "tensorboard" else folder
    return TRACKERS[name](inside)


def need(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise FedkinError(
            f"this tracker needs the package {package}: pip install 'fedkin[{extra}]'"
        )


class Told:
    """Trackers of one run. What goes wrong in one is said once, and it is told no more."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def begin(self, name: str, settings: Mapping[str, Any], done: int) -> None:
        self._tell("begin", name, settings, done)

    def log(self, number: int, measures: Mapping[str, Any]) -> None:
        """Numbers that are known and finite; counts and diagnostics too."""
        known = {
            key: float(value)
            for key, value in measures.items()
            if isinstance(value, int | float) and key != "round" and isfinite(value)
        }
        self._tell("log", number, known)

    def end(self, finished: bool) -> None:
        self._tell("end", finished)

    def _tell(self, what: str, *arguments: Any) -> None:
        for tracker in list(self._trackers):
            try:
                getattr(tracker, what)(*arguments)
            except Exception as error:  # a service that is down, a full disk, a bug of its own
                self._trackers.remove(tracker)
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                warnings.warn(
                    f"{type(tracker).__name__} is told nothing more of this run: {reason}",
                    stacklevel=2,
                )
