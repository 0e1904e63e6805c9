"""Early stopping: a run ends when its validation score no longer rises, with its best models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.runs.folder import RunFolder
from fedkin.runs.measures import Measure
from fedkin.runs.settings import Settings
from fedkin.tensors import write_text

# in a run folder: the checkpoint of the best round, where a run that went back to it says so, and
# the tables with the rounds after it
BEST, FILE, WHOLE = "best", "early.json", "all_rounds"
Rows = Sequence[Mapping[str, Any]]


def check_patience(problem: Problem, settings: Settings) -> None:
    """Refuse to wait for a score that is never measured."""
    if settings.patience is not None and problem.data.validation is None:
        raise FedkinError(
            "patience needs validation data to judge by: keep some of the training data for that "
            "with --validation-fraction 0.2"
        )


def best_round(metrics: Rows, measure: Measure) -> int:
    """The round with the best validation score, the earliest of equals; 0 if none has one."""
    scores = _scores(metrics, measure)
    return max(scores, key=lambda number: (measure.sign * scores[number], -number), default=0)


def waited(metrics: Rows, measure: Measure, patience: int | None) -> bool:
    """Whether no evaluation of the last `patience` rounds was better than one before."""
    scores = _scores(metrics, measure) if patience is not None else {}
    return bool(scores) and max(scores) - best_round(metrics, measure) >= (patience or 0)


def _scores(metrics: Rows, measure: Measure) -> dict[int, float]:
    """The mean validation score of clients, by round."""
    found = ((int(row["round"]), row.get(f"validation_{measure}")) for row in metrics)
    return {number: score for number, score in found if score is not None and score == score}


def went_back(path: Path) -> bool:
    """Whether the run in a folder has ended at its best round."""
    return (path / FILE).is_file()


def go_back(folder: RunFolder, best: int, last: int) -> None:
    """Let a folder's tables end with the best round; as they were, they are in `all_rounds`."""
    (folder.path / WHOLE).mkdir(exist_ok=True)
    for path in [*folder.path.glob("*.csv"), *folder.path.glob("*.parquet")]:
        shutil.copy2(path, folder.path / WHOLE / path.name)
    write_text(folder.path / FILE, json.dumps({"best": best, "last": last}) + "\n")
    folder.log(f"ended after round {last}; the best round by validation is {best}")
