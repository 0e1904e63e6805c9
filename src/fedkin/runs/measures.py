"""Which metrics a run is measured by: chosen, kept with it, and read again."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkin.core.metrics import METRICS, Answers, Metric, check_metric, get_metric, ratio
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData
from fedkin.data.describe import class_counts
from fedkin.errors import FedkinError
from fedkin.runs import contents
from fedkin.runs.plugins import is_file, load, short_name
from fedkin.runs.reading import read_json
from fedkin.tensors import write_text

FILE = "measures.json"
# classes are unbalanced if their shares have less than this part of the most entropy possible:
# 80 and 20 % of two classes have 0.72 of it
BALANCED = 0.75


@dataclass(frozen=True)
class Measure:
    """A metric as tables and pages need it: its name, its title, and how to read it."""

    name: str
    title: str
    higher: bool = True
    share: bool = False

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, metric: Metric) -> Measure:
        return cls(metric.name, metric.title, metric.higher, metric.share)

    @property
    def sign(self) -> int:
        """The sign of an improvement."""
        return 1 if self.higher else -1


ACCURACY = Measure.of(METRICS["accuracy"])
LOSS = Measure("loss", "loss", higher=False)


def measure_named(name: Any) -> Measure:
    """How to show a score, by its name."""
    return Measure.of(METRICS[name]) if name in METRICS else LOSS


Chosen = str | Callable[..., float]


def choose_metrics(problem: Problem, wanted: Sequence[Chosen]) -> tuple[str, ...]:
    """The names of a run's metrics, the deciding one first; what is usual is always among them.

    Where none is given: RMSE and R2 for numbers; accuracy for classes, and before it AUC and
    balanced accuracy if the classes are unbalanced.
    """
    data, loss = problem.data, problem.spec.loss
    names = [_known(name) for name in wanted]
    if data.num_classes is None:
        usual = ["rmse", "r2"]
    elif not wanted and unbalanced(data):
        usual = ["auc", "balanced_accuracy", "accuracy"]
    else:
        usual = ["accuracy"]
    for name in names:
        check_metric(get_metric(name), loss, data.num_classes)
    return tuple(dict.fromkeys([*names, *usual]))


def _known(metric: Chosen) -> str:
    """The name of a metric, made known here if it is a user's own."""
    if callable(metric):
        return own_metric(metric)
    if is_file(metric):
        return own_metric(load(metric, "metric"), short_name(metric))
    return metric


def unbalanced(data: ClientData) -> bool:
    """Whether some classes are so much rarer than others that accuracy says little."""
    if not data.train.here or not data.num_classes or data.num_classes < 2:
        return False
    counts = torch.from_numpy(class_counts(data).sum(0)).double()
    shares = counts[counts > 0] / counts.sum()
    entropy = float(-(shares * shares.log()).sum())
    return entropy < BALANCED * float(torch.tensor(float(max(2, len(shares)))).log())


def own_metric(function: Callable[..., float], name: str | None = None) -> str:
    """Make a user's function known as a metric; returns its name.

    It is called for each client as f(targets, predictions) with numpy arrays, and for classes
    with the classes' probabilities as well if it has a parameter `probabilities`. More is
    better unless it has an attribute `higher_is_better = False`.
    """
    title = str(name or getattr(function, "__name__", "own"))
    known = METRICS.get(title)
    if known is not None and known.sums is not _own_sums.get(title):
        raise FedkinError(f"'{title}' is the name of a metric already: rename the function")
    wants = "probabilities" in inspect.signature(function).parameters

    def sums(a: Answers, weights: Tensor) -> Tensor:
        found = torch.zeros(*weights.shape[:2], 2, dtype=torch.float64)
        if a.num_classes is None:
            truth, answer = a.own_units(a.targets), a.own_units(a.outputs)
            truth, answer = (v[..., 0] if v.shape[-1] == 1 else v for v in (truth, answer))
        else:
            truth, answer = a.targets, a.predicted
        for i, row in enumerate(weights):
            for j, own in enumerate(row.long()):
                n = int(own.sum())
                if not n:
                    continue
                columns = [truth[i], answer[i], *([a.probabilities[i]] if wants else [])]
                drawn = [c.repeat_interleave(own, 0).numpy(force=True) for c in columns]
                more = {"probabilities": drawn[2]} if wants else {}
                value = _number(partial(function, *drawn[:2], **more), title)
                if value == value:
                    found[i, j] = torch.tensor([value * n, n])
        return found.to(weights.device)

    _own_sums[title] = sums
    METRICS[title] = Metric(
        title, sums, ratio, bool(getattr(function, "higher_is_better", True)), whole=True
    )
    return title


_own_sums: dict[str, Any] = {}


def _number(function: Callable[[], Any], name: str) -> float:
    try:
        value = function()
    except FedkinError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise FedkinError(
            f"metric '{name}' fails: {type(error).__name__}: {reason}; it is called with numpy "
            "arrays: a client's targets, and what its model predicts for them"
        ) from None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise FedkinError(
            f"metric '{name}' must give one number for a client, not {value!r}"[:200]
        ) from None


# kept with a run --------------------------------------------------------------------------


def keep_measures(folder: Path, metrics: Sequence[str]) -> None:
    """Write down what a run is measured by."""
    facts = [asdict(Measure.of(get_metric(name))) for name in metrics]
    write_text(folder / FILE, json.dumps(facts, indent=1) + "\n")


def read_measures(folder: Path) -> list[Measure]:
    """What a run was measured by, the deciding measure first; older runs do not say."""
    try:
        found = read_json(folder / FILE, contents.MEASURES)
    except FileNotFoundError:
        return []
    return [Measure(fact.name, fact.title, fact.higher, fact.share) for fact in found]
