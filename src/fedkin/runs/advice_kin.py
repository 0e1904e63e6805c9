"""Who is kin to whom: weights, groups and how sure they are, from several splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import adjusted_rand_score, silhouette_score

Floats = npt.NDArray[np.float64]
# groups count if sites are clearly nearer to their own, and found again in other splits
CLEAR, AGREED = 0.25, 0.6
MOST_GROUPS = 8


@dataclass(frozen=True)
class Kin:
    """Weights [N, N] (rows learn from columns; means over splits), the share of splits in which
    each was above an equal share, groups where there are some, and how well splits agree."""

    weights: Floats
    seen: Floats
    groups: tuple[tuple[int, ...], ...]
    agreement: float

    def helpers(self, site: int, most: int = 3) -> list[tuple[int, float, float]]:
        """Whom a site learns from beside itself: (site, weight, share of splits), largest first.

        Named are those that weigh more than an equal share in most splits.
        """
        row, equal = self.weights[site], 1 / len(self.weights)
        order = [int(j) for j in np.argsort(-row, kind="stable") if j != site]
        kept = [j for j in order if row[j] > equal and self.seen[site, j] >= 0.5]
        return [(j, float(row[j]), float(self.seen[site, j])) for j in kept[:most]]

    def given(self) -> Floats:
        """How much each site is asked for by the others: the mean weight they give it."""
        others = self.weights.copy()
        np.fill_diagonal(others, 0)
        mean: Floats = others.sum(0) / max(1, len(others) - 1)
        return mean


def find_kin(mixing: Sequence[Floats]) -> Kin | None:
    """Kinship from the weights that splits found; None without any."""
    if not mixing:
        return None
    stacked = np.stack(mixing)
    weights, n = stacked.mean(0), stacked.shape[1]
    seen = (stacked > 1 / n).mean(0)
    groups, agreement = _groups(weights, stacked)
    return Kin(weights, seen, groups, agreement)


def _groups(weights: Floats, splits: Floats) -> tuple[tuple[tuple[int, ...], ...], float]:
    """Groups of sites that learn from the same ones, if all splits find nearly the same."""
    labels = cut(weights)
    if labels is None:
        return (), 0.0
    count = int(labels.max())
    again = [cut(one, count) for one in splits]
    scores = [adjusted_rand_score(labels, other) for other in again if other is not None]
    agreement = float(np.mean(scores)) if scores else 0.0
    if agreement < AGREED:
        return (), agreement
    members = [tuple(np.flatnonzero(labels == k).tolist()) for k in range(1, count + 1)]
    return tuple(sorted(members, key=lambda g: (-len(g), g))), agreement


def cut(weights: Floats, count: int | None = None) -> npt.NDArray[np.int64] | None:
    """A label from 1 for each site: by average linkage, as many groups as are clearest.

    Two sites are as far apart as their weights differ: |a_i - a_j|_1/2, from 0 to 1. What a site
    gives itself counts as given to its kin, or else nobody would resemble anybody.
    """
    n = len(weights)
    if n < 4:
        return None
    kinship = (weights + weights.T) / 2
    np.fill_diagonal(kinship, 0)
    np.fill_diagonal(kinship, kinship.max(1))
    total = kinship.sum(1, keepdims=True)
    rows = np.divide(kinship, total, out=np.full_like(kinship, 1 / n), where=total > 0)
    apart = pdist(rows, "cityblock") / 2
    if not np.isfinite(apart).all() or apart.max() < 1e-9:
        return None
    tree = linkage(apart, "average")
    if count is not None:
        return np.asarray(fcluster(tree, count, "maxclust"), np.int64)
    best, clearest = None, CLEAR
    for k in range(2, min(MOST_GROUPS, n // 2) + 1):
        labels = np.asarray(fcluster(tree, k, "maxclust"), np.int64)
        if labels.max() < 2 or np.bincount(labels)[1:].min() < 2:
            continue
        clear = float(silhouette_score(squareform(apart), labels, metric="precomputed"))
        if clear > clearest:
            best, clearest = labels, clear
    return best
