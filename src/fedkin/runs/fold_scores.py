"""Scores of folds: kept by each fold's run, and added up as if they were of one test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedkin.core.metrics import METRICS
from fedkin.errors import FedkinError
from fedkin.runs.evaluation import Scores, rarest
from fedkin.tensors import open_tensors, write_tensors

SCORES = "scores"  # the folder of a fold's run with a file for each evaluation


def keep_scores(folder: Path, number: int, scores: Mapping[str, Scores]) -> None:
    """Write the sums behind the scores of a round."""
    tensors: dict[str, Tensor] = {}
    for kind, own in scores.items():
        tensors |= {f"{kind} loss": own.loss, f"{kind} examples": own.examples}
        tensors |= {f"{kind} sums {name}": sums for name, sums in own.sums.items()}
        tensors |= {f"{kind} drawn {name}": sums for name, sums in own.drawn.items()}
        if own.classes is not None:
            tensors[f"{kind} classes"] = own.classes
    (folder / SCORES).mkdir(exist_ok=True)
    write_tensors(folder / SCORES / f"{number}.safetensors", tensors, {"round": str(number)})


def read_scores(folder: Path, number: int) -> dict[str, Scores]:
    """What `keep_scores` wrote in a round; empty where it was not evaluated."""
    path = folder / SCORES / f"{number}.safetensors"
    if not path.is_file():
        return {}
    found: dict[str, dict[str, Tensor]] = {}
    for title, stored in open_tensors(path).items():
        kind, _, what = title.partition(" ")
        found.setdefault(kind, {})[what] = stored[:]
    try:
        return {
            kind: Scores(
                own["loss"],
                own["examples"],
                _under("sums ", own),
                drawn=_under("drawn ", own),
                classes=own.get("classes"),
            )
            for kind, own in found.items()
        }
    except KeyError as error:
        raise FedkinError(f"{path} is damaged: it has no {error}") from None


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def add_up(folds: Sequence[Scores], means: Sequence[float]) -> Scores:
    """Scores of all folds' examples together.

    `means` are what each fold's targets were centred by. Ranking metrics compare examples of
    the same fold only, since each fold has a model of its own.
    """
    examples = torch.stack([fold.examples for fold in folds])
    losses = torch.stack([fold.loss for fold in folds])
    total = torch.where(examples > 0, losses * examples, 0).sum(0)
    classes = [fold.classes for fold in folds if fold.classes is not None]
    counts = torch.stack(classes).sum(0) if classes else None
    sums = _added([fold.sums for fold in folds], means)
    drawn = _added([fold.drawn for fold in folds], means)
    return Scores(
        total / examples.sum(0),
        examples.sum(0),
        sums,
        None if counts is None else rarest(counts),
        {name: METRICS[name].value(own) for name, own in drawn.items()},
    )


def _added(folds: Sequence[Mapping[str, Tensor]], means: Sequence[float]) -> dict[str, Tensor]:
    """The sums of all folds by metric, their targets centred by the first one's mean."""
    found: dict[str, Tensor] = {}
    for fold, mean in zip(folds, means, strict=True):
        for name, own in fold.items():
            shifted = METRICS[name].shifted
            own = own if shifted is None else shifted(own, mean - means[0])
            found[name] = found[name] + own if name in found else own
    return found
