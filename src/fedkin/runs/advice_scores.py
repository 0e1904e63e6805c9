"""The measure that advice speaks in, and its noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from fedkin.core.federation import Federation, Requests
from fedkin.runs.evaluation import score, score_trivial

Floats = npt.NDArray[np.float64]


def judge_models(fed: Federation, asked: Requests, part: str, metric: str) -> Floats:
    """Every site's metric on a part of its rows; NaN for sites without any."""
    return score(fed, asked, part, (metric,))[metric].double().numpy(force=True)


def judge_loss(fed: Federation, asked: Requests, part: str) -> Floats:
    """Every site's mean loss on a part of its rows; NaN for sites without any."""
    return score(fed, asked, part).loss.double().numpy(force=True)


def judge_trivial(fed: Federation, metric: str) -> Floats:
    """The metric of every site's trivial answer: its commonest class, its mean target."""
    return score_trivial(fed, (metric,))[metric].double().numpy(force=True)


@dataclass(frozen=True)
class Gain:
    """A mean difference over splits with its 95 % interval (None: too few splits to say)."""

    mean: float
    low: float | None
    high: float | None
    error: float | None = None  # the standard error of the mean

    @property
    def verdict(self) -> str:
        """gains, loses, or same: no difference that can be told from noise."""
        if self.low is None or self.high is None:
            return "unknown"
        return "gains" if self.low > 0 else "loses" if self.high < 0 else "same"


def gain_over_splits(values: Sequence[float], ratio: float) -> Gain | None:
    """Mean and interval of a difference measured on overlapping splits.

    Nadeau and Bengio's corrected resampled t: splits share rows, so the variance of their mean
    is (1/S + test rows / training rows) * s^2, and not s^2/S. `ratio` is that of the rows.
    """
    known = np.array([value for value in values if np.isfinite(value)])
    if not len(known):
        return None
    mean = float(known.mean())
    if len(known) < 3:
        return Gain(mean, None, None)
    if np.ptp(known) < 1e-12:  # no noise was seen, so none is known; that nothing changed, is
        return Gain(0.0, 0.0, 0.0) if abs(mean) < 1e-12 else Gain(mean, None, None)
    spread = float(np.sqrt((1 / len(known) + ratio) * known.var(ddof=1)))
    half = float(special.stdtrit(len(known) - 1, 0.975)) * spread
    return Gain(mean, mean - half, mean + half, spread)


def mean_of(values: Sequence[float] | Floats) -> float:
    """The mean of the values that are known; NaN without any."""
    known = np.asarray(values)[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
