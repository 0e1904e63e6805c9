"""Everybody's nearest neighbours without looking at all pairs.

Rows are put into about sqrt(N) lists, by the nearest of as many centres. The neighbours of all
rows of a list are then looked for in the lists whose centres are nearest to its own, all at once
by one matrix product. How many lists that must be is found out beforehand: of some rows the true
neighbours are computed, and so many lists are taken that they contain the share SURE of these.
Where rows have no structure that is nearly all lists, and nothing is lost but time.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from fedkin.core import rng

# the share of true neighbours that is to be found, and of how many rows they are computed
SURE, PROBED = 0.98, 256
# steps of k-means, and rows per centre that take part in them
STEPS, PER_CENTRE = 5, 30
# numbers that are held at a time beside the results
CHUNK = 1 << 24


def nearest(g: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of every row of g [N, d] the `count` nearest rows [N, count], itself first, and their z.

    z_ij = |g_i - g_j|^2 is exact; that there is none nearer is so for nearly all (SURE).
    """
    kin, count = torch.arange(len(g))[:, None], min(count, len(g))
    g = g.float() - g.float().mean(0)  # changes no distance, and keeps digits
    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # clients may have worked on one each
    try:
        if count > 1:
            kin = torch.cat([kin, _others(g, _lists(g), count - 1)], 1)
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


def exact(g: Tensor, rows: Tensor, count: int) -> Tensor:
    """The nearest others of some rows, by all distances."""
    return _best(g[rows], rows, g, torch.arange(len(g)), count)


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


# the lists --------------------------------------------------------------------------------


def _lists(g: Tensor) -> tuple[Tensor, Tensor]:
    """Which list every row is in, and the lists' centres: k-means on some rows."""
    count = max(1, round(len(g) ** 0.5))
    random = np.random.Generator(np.random.Philox(key=int(rng.key("neighbours", len(g))[0])))
    some = g[torch.from_numpy(random.permutation(len(g))[: PER_CENTRE * count])]
    centres = some[:count].clone()
    for _ in range(STEPS):
        at = _closest(some, centres)
        sums = torch.zeros_like(centres).index_add_(0, at, some)
        sizes = torch.bincount(at, minlength=count)
        centres = torch.where(sizes[:, None] > 0, sums / sizes[:, None].clamp(min=1), centres)
    return _closest(g, centres), centres


def _closest(g: Tensor, centres: Tensor) -> Tensor:
    squares = centres.square().sum(1) / 2
    rows = g.split(max(1, CHUNK // len(centres)))
    return torch.cat([(squares - part @ centres.T).argmin(1) for part in rows])


def _others(g: Tensor, lists: tuple[Tensor, Tensor], count: int) -> Tensor:
    """The nearest others of every row, from the lists around its own."""
    at, centres = lists
    squares = centres.square().sum(1) / 2
    around = (squares - centres @ centres.T).argsort(1)  # the lists as seen from each list
    random = np.random.Generator(np.random.Philox(key=int(rng.key("probed", len(g))[0])))
    probed = torch.from_numpy(random.permutation(len(g))[:PROBED])
    # how far down the order of its lists each true neighbour is
    rank = around.argsort(1)
    depth = rank[at[probed][:, None], at[exact(g, probed, count)]].flatten().sort().values
    lists_taken = int(depth[min(len(depth) - 1, int(SURE * len(depth)))]) + 1
    order = at.argsort(stable=True)
    ends = torch.bincount(at, minlength=len(centres)).cumsum(0).tolist()
    members = [order[lo:hi] for lo, hi in zip([0, *ends[:-1]], ends, strict=True)]
    found = torch.empty(len(g), count, dtype=torch.int64)
    for own, seen in zip(members, around.tolist(), strict=True):
        taken, size = lists_taken, 0
        while size <= count:  # small lists: as many as there must be rows
            candidates = torch.cat([members[k] for k in seen[:taken]])
            taken, size = taken + 1, len(candidates)
        if len(own):
            found[own] = _best(g[own], own, g[candidates], candidates, count)
    return found


def _best(rows: Tensor, own: Tensor, others: Tensor, names: Tensor, count: int) -> Tensor:
    """The nearest of the `others` to every row, by their names; never a row itself."""
    squares = others.square().sum(1) / 2
    found, height = [], max(1, CHUNK // len(others))
    for part, mine in zip(rows.split(height), own.split(height), strict=True):
        far = torch.addmm(squares, part, others.T, alpha=-1)
        near = names[far.topk(count + 1, largest=False).indices]
        # a row itself goes to the end, and with it one too many where it is not among them
        last = (near == mine[:, None]).int().argsort(dim=1, stable=True)
        found.append(near.gather(1, last)[:, :count])
    return torch.cat(found)
