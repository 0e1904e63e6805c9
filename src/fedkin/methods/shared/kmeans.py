"""k-means in which a centre that no point is nearest to stays where it is.

Libraries move such a centre onto a far point. Where only some of the clients answer in a round,
that takes a group whose members were not asked away from them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedkin.methods.ifca import group_means

STARTS, MOST = 10, 300


class Grouped(NamedTuple):
    """The nearest centre of every point, the centres, the iterations it took, what is left."""

    labels: Tensor
    centres: Tensor
    iterations: int
    inertia: float


def kmeans(points: Tensor, centres: Tensor, weights: Tensor) -> Grouped:
    """Lloyd's iterations from these centres [K, d], until no point changes its centre."""
    labels = torch.full((len(points),), -1, device=points.device)
    iteration, before = 0, None
    while iteration < MOST and (before is None or not torch.equal(labels, before)):
        apart, iteration = distances(points, centres), iteration + 1
        before, labels = labels, apart.argmin(1)
        centres = group_means(points, labels, weights, centres)
    apart = distances(points, centres)
    inertia = weights.to(apart) @ apart.amin(1).square()
    return Grouped(labels.cpu(), centres, iteration, float(inertia))


def kmeans_anew(
    points: Tensor, count: int, weights: Tensor, random: np.random.Generator
) -> Grouped:
    """The best of ten k-means++ starts, by the weighted squares of what is left."""
    starts = (plus_plus(points, count, weights, random) for _ in range(STARTS))
    return min((kmeans(points, start, weights) for start in starts), key=lambda g: g.inertia)


def plus_plus(points: Tensor, count: int, weights: Tensor, random: np.random.Generator) -> Tensor:
    """k-means++: each next centre is a point, with a chance of weight*(distance to the nearest)^2.

    Where there are fewer different points than centres the others are points met before.
    """
    chances, chosen = weights.double().numpy(force=True), list[int]()
    for _ in range(count):
        total = chances.sum()
        shares = chances / total if total > 0 else None
        chosen.append(int(random.choice(len(points), p=shares)))
        apart = distances(points, points[chosen]).amin(1).double().numpy(force=True)
        chances = weights.double().numpy(force=True) * apart**2
    return points[chosen].clone()


def distances(points: Tensor, centres: Tensor) -> Tensor:
    """Between all points and centres; by differences, since squares of large numbers cancel."""
    return torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist")


def numbered_like(grouped: Grouped, old: Tensor) -> Grouped:
    """The same groups with the numbers of the old centres that they are nearest to, in all."""
    from scipy.optimize import linear_sum_assignment  # imported here: it takes half a second

    new, place = linear_sum_assignment(distances(grouped.centres, old).numpy(force=True))
    number = torch.from_numpy(place[np.argsort(new)])
    centres = torch.empty_like(grouped.centres)
    centres[number] = grouped.centres
    return grouped._replace(labels=number[grouped.labels], centres=centres)
