"""Scores of all that a run is judged by: the method's models and those of its rivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedkin.core.federation import Requests
from fedkin.core.variants import PLAIN
from fedkin.methods.base import use
from fedkin.runs.contender import Contender
from fedkin.runs.estimation import estimation_errors
from fedkin.runs.evaluation import Scores, score, score_model
from fedkin.runs.settings import Settings


def score_contenders(
    contenders: Mapping[str, Contender],
    number: int,
    metrics: Sequence[str],
    noise: tuple[int, int],
    settings: Settings,
) -> dict[str, Scores]:
    """Scores after round `number` by kind: personal, global, local, and on further parts.

    `noise` tells how often test rows are drawn anew, and in which fold.
    """
    contender = contenders["method"]
    validated = contender.fed.problem.data.validation is not None
    models = contender.models(number)
    found = {"personal": score(contender.fed, models, "test", metrics, *noise)}
    if validated:
        found["validation"] = score(contender.fed, models, "validation", metrics)
    if settings.train_scores:
        found["train"] = score(contender.fed, models, "train", metrics)
    model = contender.method.global_model(contender.state)
    if model is not None and is_used_by_all(model, models):
        found["global"] = replace(found["personal"], resampled={}, drawn={})
        if settings.train_scores:
            found["global_train"] = found["train"]
    elif model is not None:
        found["global"] = score_model(contender.fed, model, "test", metrics)
        if settings.train_scores:
            found["global_train"] = score_model(contender.fed, model, "train", metrics)
    contender.fed.record(**estimation_errors(contender.fed, models, model))
    if "local" in contenders:
        alone = contenders["local"]
        models = alone.models(number)
        found["local"] = score(alone.fed, models, "test", metrics, *noise)
        if validated:
            found["local_validation"] = score(alone.fed, models, "validation", metrics)
    return found


def is_used_by_all(model: Tensor, asked: Requests) -> bool:
    """Whether the personal models that a request gives are this one itself: no need to score it
    twice."""
    if isinstance(asked, tuple) or asked.step is not use or asked.variant != PLAIN:
        return False
    own = asked.shared.get("model")
    return own is not None and own.data_ptr() == model.data_ptr() and own.shape[1:] == model.shape


def not_finite(personal: Scores, number: int, names: Sequence[str]) -> str | None:
    """A sentence about clients whose models give losses that are not finite, if there are any."""
    bad = ~torch.isfinite(personal.loss) & (personal.examples > 0)
    if not bool(bad.any()):
        return None
    some = ", ".join(names[i] for i in bad.nonzero()[:5, 0].tolist())
    return (
        f"training diverged by round {number}: the personal models of {int(bad.sum())} of "
        f"{len(bad)} clients ({some}{', ...' if bad.sum() > 5 else ''}) give "
        "losses that are not finite"
    )
