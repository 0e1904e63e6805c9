"""Answers that are well formed and cannot be true: far more work, or far larger, than others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedkin.engines.wire import Message

FEWEST = 3  # answers among which one can be told to stand out
TIMES_LARGER = 100.0  # than the others' norms
TIMES_MORE = 20.0  # work than the median, for a site of median size
MOST_WORK = 2**40  # gradients or samples in one answer


def outliers(answers: Mapping[int, Message], sizes: Sequence[int]) -> dict[int, str]:
    """Why an answer stands out, by its key; `sizes` has the samples of each, in their order.

    Work may be in proportion to a site's samples (passes over its data) or not (steps). The
    norm of a tensor is compared with the other answers' upper quarter, which a few cannot move
    far.
    """
    found: dict[int, str] = {}
    if len(answers) < FEWEST:
        return found
    keys, rows = list(answers), np.maximum(np.array(sizes, float), 1)
    for name in ("gradients", "samples"):
        work = np.array([answers[key][1][name] for key in keys], float)
        for i, key in enumerate(keys):
            others = np.delete(work, i)
            relative = max(1.0, rows[i] / np.median(np.delete(rows, i)))
            if work[i] > max(1.0, float(np.median(others))) * relative * TIMES_MORE:
                found[key] = f"it counts {work[i]:.3g} {name}, the others {np.median(others):.3g}"
    for name in answers[keys[0]][0]:
        norms = np.array([_norm(answers[key][0].get(name)) for key in keys])
        if np.isfinite(norms).sum() < FEWEST:
            continue
        large = dict[int, str]()
        for i, key in enumerate(keys):
            others = np.delete(norms, i)
            # the upper quarter: in some methods half of the sites have next to nothing to say
            usual = float(np.quantile(others[np.isfinite(others)], 0.75, method="lower"))
            if usual > 0 and np.isfinite(norms[i]) and norms[i] > TIMES_LARGER * usual:
                large[key] = f"its {name} is {norms[i] / usual:.3g} times as large as the others'"
        if 2 * len(large) < len(keys):  # otherwise nobody can tell who stands out
            found = large | found
    return found


def _norm(value: Tensor | None) -> float:
    if value is None or not value.is_floating_point():
        return 0.0
    return float(torch.linalg.vector_norm(value.double()))
