"""Everybody's nearest neighbours, by the distances of all pairs but some rows of them at a time.

A matrix product gives the distances; to find the smallest of each row is what could take long. So
columns are put into groups, and the smallest of every group is taken, which is one fast pass. The
`count` nearest are in the `count` groups that have the smallest ones, and only these are sorted.
That measures better here than an index: gradients of few samples are noisy, in as many dimensions
as a model has weights, and nearly all of an index's lists would have to be searched.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

# numbers that are held at a time beside the results
CHUNK = 1 << 24


def nearest(g: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of every row of g [N, d] the `count` nearest rows [N, count], itself first, and their z.

    z_ij = |g_i - g_j|^2, and there is none nearer (to single precision).
    """
    kin, count = torch.arange(len(g))[:, None], min(count, len(g))
    g = g.float() - g.float().mean(0)  # changes no distance, and keeps digits
    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # clients may have worked on one each
    try:
        if count > 1:
            kin = torch.cat([kin, _others(g, count - 1)], 1)
        return kin, squared(g, kin)
    finally:
        torch.set_num_threads(threads)


def squared(g: Tensor, kin: Tensor) -> Tensor:
    """z_ij = |g_i - g_j|^2 for the j that every row i names [N, s]."""
    z = torch.empty(kin.shape, dtype=torch.float64)
    for rows in torch.arange(len(g)).split(max(1, CHUNK // (kin.shape[1] * g.shape[1]))):
        apart = g[kin[rows]] - g[rows, None]
        z[rows] = apart.square_().sum(2).double()
    return z


def _others(g: Tensor, count: int) -> Tensor:
    """The nearest others of every row [N, count]."""
    n = len(g)
    height = max(1, round((n / count) ** 0.5))  # of a group: about as much is sorted twice
    groups = -(-n // height)
    # |b|^2/2 - a*b orders the b as |a - b|^2 does, and is (a, 1)*(-b, |b|^2/2): one product
    columns = g.new_zeros(groups * height, g.shape[1] + 1)
    columns[:n, :-1], columns[:n, -1] = -g, g.square().sum(1) / 2
    columns[n:, -1] = torch.finfo(g.dtype).max  # nobody, to fill the groups
    rows, one = torch.arange(n).split(max(1, CHUNK // len(columns))), g.new_ones(n, 1)
    found, far = torch.empty(n, count, dtype=torch.int64), g.new_empty(len(rows[0]), len(columns))
    for part in rows:
        now = torch.mm(torch.cat([g[part], one[part]], 1), columns.T, out=far[: len(part)])
        now[torch.arange(len(part)), part] = torch.inf  # oneself
        found[part] = _smallest(now.view(len(part), height, groups), count)
    return found


def _smallest(far: Tensor, count: int) -> Tensor:
    """Where the smallest numbers of each far[i] [height, groups] are, if that is read flat."""
    rows, height, groups = far.shape
    best = far.amin(1).topk(count, largest=False, sorted=False).indices
    there = far.gather(2, best[:, None].expand(rows, height, count)).flatten(1)
    place = there.topk(count, largest=False).indices
    return place // count * groups + best.gather(1, place % count)


def uncrowded(kin: Tensor, z: Tensor, most: int) -> Tensor:
    """z with those ruled out to whom a row's neighbour is not among the nearest itself.

    In many dimensions a few rows are near to very many. A row stays the neighbour of the `most`
    nearest of those who name it, and of itself.
    """
    of, places = kin.flatten(), z.flatten().argsort(stable=True)
    places = places[of[places].argsort(stable=True)]  # by neighbour, then by distance
    named = of[places]
    begins = torch.searchsorted(named, torch.arange(len(kin)))
    rank = torch.empty_like(places)
    rank[places] = torch.arange(len(places)) - begins[named]
    mine = kin == torch.arange(len(kin))[:, None]
    return z.masked_fill((rank.view_as(kin) > most) & ~mine, torch.inf)
