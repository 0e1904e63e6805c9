"""Answers that are well formed and cannot be true: far more work, or far larger, than others'.

The limits leave honest sites alone that differ as much as sites do (`python -m bench plausible`):
with classes by Dirichlet(0.1) and 10 to 1,000 samples the largest honest update was 5.4 times the
others' upper quarter, and 48 times where one site had 1,000 samples and all others 10 (SCAFFOLD,
five passes over the data, second round). Work was never more than in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedkin.engines.wire import Message

FEWEST = 3  # answers among which one can be told to stand out
TIMES_LARGER = 100.0  # than the others' norms
TIMES_MORE = 10.0  # work than the median, for a site of median size
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
        for key, times, count in zip(keys, times_the_work(work, rows), work, strict=True):
            if times > TIMES_MORE:
                found[key] = f"it counts {count:.3g} {name}, {times:.3g} times what others count"
    for name in answers[keys[0]][0]:
        beside = times_the_others([norm_of(answers[key][0].get(name)) for key in keys])
        large = {
            key: f"its {name} is {times:.3g} times as large as the others'"
            for key, times in zip(keys, beside, strict=True)
            if times > TIMES_LARGER
        }
        if 2 * len(large) < len(keys):  # otherwise nobody can tell who stands out
            found = large | found
    return found


def times_the_work(work: np.ndarray, rows: np.ndarray) -> list[float]:
    """Each count beside the median of the others', in proportion to samples where it has more."""
    found = []
    for i, count in enumerate(work):
        relative = max(1.0, rows[i] / np.median(np.delete(rows, i)))
        found.append(float(count / (max(1.0, np.median(np.delete(work, i))) * relative)))
    return found


def times_the_others(norms: Sequence[float]) -> list[float]:
    """Each norm beside the others' upper quarter; 0 where there is nothing to compare with.

    The upper quarter: in some methods half of the sites have next to nothing to say.
    """
    sizes = np.array(norms)
    if np.isfinite(sizes).sum() < FEWEST:
        return [0.0] * len(sizes)
    found = []
    for i, size in enumerate(sizes):
        others = np.delete(sizes, i)
        usual = float(np.quantile(others[np.isfinite(others)], 0.75, method="lower"))
        found.append(float(size / usual) if usual > 0 and np.isfinite(size) else 0.0)
    return found


def norm_of(value: Tensor | None) -> float:
    if value is None or not value.is_floating_point():
        return 0.0
    return float(torch.linalg.vector_norm(value.double()))
