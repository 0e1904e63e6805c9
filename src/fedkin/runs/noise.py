"""How sure a client's score is: intervals, and which differences are within the noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from fedkin.core.metrics import METRICS
from fedkin.errors import FedkinError
from fedkin.runs.evaluation import Scores
from fedkin.tensors import open_tensors, write_tensors

Floats = NDArray[np.float64]
LEVEL = 0.95
# examples drawn anew for a client, in all and at least
DRAWS, MOST_TIMES, FEWEST_TIMES = 50_000_000, 100, 20


def resample_times(examples: int) -> int:
    """How often clients' examples are drawn anew: less often where there are very many."""
    return int(min(MOST_TIMES, max(FEWEST_TIMES, DRAWS // max(1, examples))))


def intervals(scores: Scores, metric: str) -> tuple[Floats, Floats]:
    """A 95 % interval of every client's score; NaN where nothing can be said.

    Of an accuracy the exact binomial one (Clopper and Pearson); otherwise the middle 95 % of
    the scores on resampled examples (bootstrap).
    """
    if metric == "accuracy":
        right, count = scores.sums[metric].numpy().T
        return exact_binomial(right, count)
    drawn = scores.resampled.get(metric)
    if drawn is None:
        nothing = np.full(len(scores.loss), np.nan)
        return nothing, nothing
    enough = (scores.certain(metric) >= 2).numpy()
    ends = drawn.nanquantile(torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2]).double(), dim=1)
    low, high = ends.numpy()
    return np.where(enough, low, np.nan), np.where(enough, high, np.nan)


def exact_binomial(right: Floats, count: Floats) -> tuple[Floats, Floats]:
    """The Clopper-Pearson interval of a share of right answers."""
    tail = (1 - LEVEL) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(right > 0, special.betaincinv(right, count - right + 1, tail), 0.0)
        high = np.where(right < count, special.betaincinv(right + 1, count - right, 1 - tail), 1.0)
    return np.where(count > 0, low, np.nan), np.where(count > 0, high, np.nan)


@dataclass(frozen=True)
class Shares:
    """Shares of clients that are better off than alone, within the noise the same, or worse."""

    better: float
    same: float
    worse: float


def noise(first: Tensor, second: Tensor, certain: Tensor, bounded: bool) -> Tensor:
    """How far two scores of a client on the same examples differ by chance alone: [N].

    `first` and `second` [N, times] are both models' scores on the same resamples of the
    client's examples. The half-width of a 95 % interval of their difference is t*s, with s
    their deviation and t of as many degrees of freedom as `certain` examples allow. A score of
    counts (`bounded`) that never changed over few examples is not certain: s^2 grows by
    (2/(n + 2))^2, which makes the rule agree with the exact sign test of McNemar.
    """
    apart = first - second
    known = (~apart.isnan()).sum(1)
    middle = apart.nanmean(1, keepdim=True)
    variance = (apart - middle).square().nansum(1) / (known - 1).clamp_min(1)
    n = certain.double()
    variance = variance * n / (n - 1).clamp_min(1)
    if bounded:
        variance = variance + (2 / (n + 2)).square()
    t = torch.from_numpy(special.stdtrit(np.maximum(n.numpy() - 1, 1), (1 + LEVEL) / 2))
    half = t * variance.sqrt()
    return torch.where((n >= 2) & (known >= 2), half, torch.inf)


def compare_scores(one: Scores, other: Scores, metric: str) -> tuple[Tensor, Tensor]:
    """Every client's gain of one over the other, and how much of it may be noise."""
    sign = 1 if METRICS[metric].higher else -1
    gain = sign * (one[metric] - other[metric])
    if metric not in one.resampled or metric not in other.resampled:
        return gain, torch.zeros_like(gain)
    bounded = METRICS[metric].share or METRICS[metric].per_class
    half = noise(one.resampled[metric], other.resampled[metric], one.certain(metric), bounded)
    return gain, half


def shares_of(gain: Tensor, half: Tensor) -> Shares | None:
    """Three shares of the clients whose gain is known."""
    known = ~gain.isnan()
    count = int(known.sum())
    if not count:
        return None
    better, worse = ((gain > half) & known).sum(), ((gain < -half) & known).sum()
    b, w = float(better) / count, float(worse) / count
    return Shares(b, 1 - b - w, w)


def mean_interval(values: Floats) -> tuple[float, float, float] | None:
    """The mean over clients with its 95 % t interval; None of fewer than two clients.

    A client is the unit: what a mean gain is worth although no single client's is beyond noise.
    """
    known = values[np.isfinite(values)]
    if len(known) < 2:
        return None
    mean, error = float(known.mean()), float(known.std(ddof=1)) / np.sqrt(len(known))
    half = float(special.stdtrit(len(known) - 1, (1 + LEVEL) / 2)) * error
    return mean, mean - half, mean + half


# kept with a run, so that runs on the same clients can be compared --------------------------

RESAMPLES = "resamples.safetensors"


def keep_resamples(folder: Path, scores: Mapping[str, Scores], metric: str) -> None:
    """Write clients' scores on resampled examples, of personal models and of those alone."""
    kinds = {
        kind: scores[kind].resampled[metric]
        for kind in ("personal", "local")
        if kind in scores and metric in scores[kind].resampled
    }
    if kinds:
        tensors = {**kinds, "certain": scores["personal"].certain(metric)}
        write_tensors(folder / RESAMPLES, tensors, {"metric": metric})


def read_resamples(folder: Path) -> dict[str, Tensor]:
    """What `keep_resamples` wrote; empty where nothing was."""
    path = folder / RESAMPLES
    if not path.is_file():
        return {}
    stored = open_tensors(path)
    certain = stored.get("certain")
    drawn = [t for name, t in stored.items() if name != "certain"]
    if (
        certain is None
        or len(certain.shape) != 1
        or any(
            len(t.shape) != 2 or t.shape[0] != certain.shape[0] or t.dtype != torch.float64
            for t in drawn
        )
    ):
        raise FedkinError(f"{path} is damaged: it needs resampled scores of the same clients")
    return {name: t[:] for name, t in stored.items()}
