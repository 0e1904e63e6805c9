"""Everybody's nearest neighbours, exactly, by the distances of all pairs but some at a time.

That measures better here than an index: gradients of few samples are noisy, in as many dimensions
as a model has weights, and nearly all of an index's lists would have to be searched. Three things
make it fast. Gradients that lie in fewer dimensions than they have numbers (those of a softmax
layer do: over the classes they sum to zero) are turned into these. A matrix product gives the
distances of two blocks of rows to each other, for both of them. And of each row only what is
nearer than a limit is looked at further: about as near as its `count` nearest, by its distances
to some of the rows. A row of which too few are within its limit, or too many, is done again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# numbers that are held at a time beside the results, and where they should stay in the cache
CHUNK, SMALL = 1 << 24, 1 << 18
# distances of so many rows to so many others stay in the processor's memory
BLOCK, WIDTH = 1024, 4096
# up to so many rows no limits are sought
FEW = 4096
# a row's limit is its distance to the so-and-so nearest (or, of more than 32 that are sought, a
# multiple) of one in so many rows: too few are within it with probability .004
ONE_IN, PLACE = 32, 5
# a row that has so many times `count` within its limit is done again
CROWDED = 64


def nearest(g: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of every row of g [N, d] the `count` nearest rows [N, count], itself first, and their z.

    z are the squared distances.
    """
    kin, count = torch.arange(len(g))[:, None], min(count, len(g))
    g = g.float() - g.float().mean(0)  # changes no distance, and keeps digits
    if count > 1:
        find = _by_all if len(g) <= FEW else _by_limits
        kin = torch.cat([kin, find(turned(g), count - 1)], 1)
    return kin, squared(g, kin)


def squared(g: Tensor, kin: Tensor) -> Tensor:
    """z_ij = |g_i - g_j|^2 for the j that every row i names [N, s]."""
    z = torch.empty(kin.shape, dtype=torch.float64)
    for rows in torch.arange(len(g)).split(max(1, SMALL // (kin.shape[1] * g.shape[1]))):
        apart = g[kin[rows]] - g[rows, None]
        z[rows] = apart.square_().sum(2).double()
    return z


def turned(g: Tensor) -> Tensor:
    """The same distances in as many dimensions as the rows really have."""
    if len(g) < g.shape[1]:
        return g
    inner = torch.zeros(g.shape[1], g.shape[1], dtype=torch.float64)
    for rows in g.split(max(1, CHUNK // g.shape[1])):
        inner += (rows.T @ rows).double()
    sizes, axes = torch.linalg.eigh(inner)
    # what is left out is what single precision does not see
    real = sizes > sizes[-1] * torch.finfo(g.dtype).eps
    return g if bool(real.all()) else g @ axes[:, real].to(g.dtype)


def _by_all(g: Tensor, count: int) -> Tensor:
    """The nearest others of every row [N, count]."""
    everybody = torch.arange(len(g))
    return _among(g, everybody, everybody, count)[0]


def _by_limits(g: Tensor, count: int) -> Tensor:
    """The same by limits, each pair of rows computed once."""
    n, some = len(g), torch.arange(ONE_IN // 2, len(g), ONE_IN)
    place = PLACE * -(-count // ONE_IN)  # about ONE_IN*place rows are nearer than that
    limit = _among(g, torch.arange(n), some, min(place, len(some) - 1))[1][:, -1]
    order = limit.argsort(descending=True)  # of two rows the first has the wider limit
    found, done = _within(g[order], limit[order], count)
    found = order[found]
    if not bool(done.all()):
        found[~done] = _among(g, order[~done], torch.arange(n), count)[0]
    return torch.empty_like(found).index_copy_(0, order, found)


def _within(g: Tensor, limit: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The nearest others of rows, the widest limits first; and for which rows that is right."""
    n, size = len(g), g.square().sum(1)
    # |a - b|^2 - limit is (a, |a|^2 - limit, 1)*(-2b, 1, |b|^2): one product
    left = torch.cat([g, (size - limit)[:, None], g.new_ones(n, 1)], 1)
    right = torch.cat([-2 * g, g.new_ones(n, 1), size[:, None]], 1)
    far, near = g.new_empty(BLOCK, WIDTH), torch.empty(BLOCK, WIDTH, dtype=torch.bool)
    found = torch.zeros(n, count, dtype=torch.int64)
    pairs = Pairs(limit.numpy(), CROWDED * count)
    for rows in torch.arange(n).split(BLOCK):
        first = int(rows[0])
        for start in range(first, n, WIDTH):
            shape = (len(rows), min(WIDTH, n - start))
            now, there = (t.view(-1)[: shape[0] * shape[1]].view(shape) for t in (far, near))
            torch.mm(left[first : first + BLOCK], right[start : start + WIDTH].T, out=now)
            torch.lt(now, 0, out=there)
            pairs.add(first, start, now.numpy(), there.numpy())
        found[rows] = pairs.nearest(first, len(rows), count)
    return found, pairs.right(count)


def _among(g: Tensor, rows: Tensor, columns: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of some rows the nearest of some others [rows, count], and their squared distances.

    To find the smallest of each row of distances is what could take long. So columns are put into
    groups, and the smallest of every group is taken, which is one fast pass. The `count` nearest
    are in the `count` groups that have the smallest ones, and only these are sorted.
    """
    n = len(columns)
    height = max(1, round((n / count) ** 0.5))  # of a group: about as much is sorted twice
    groups = -(-n // height)
    # |b|^2/2 - a*b orders the b as |a - b|^2 does, and is (a, 1)*(-b, |b|^2/2): one product
    others = g.new_zeros(groups * height, g.shape[1] + 1)
    others[:n, :-1], others[:n, -1] = -g[columns], g[columns].square().sum(1) / 2
    others[n:, -1] = torch.finfo(g.dtype).max  # nobody, to fill the groups
    place = torch.full((len(g),), -1)
    place[columns] = torch.arange(n)
    parts = torch.arange(len(rows)).split(max(1, CHUNK // len(others)))
    found, far = torch.empty(len(rows), count, dtype=torch.int64), g.new_empty(len(rows), count)
    room = g.new_empty(len(parts[0]), len(others))
    for part in parts:
        mine = g[rows[part]]
        one = g.new_ones(len(part), 1)
        now = torch.mm(torch.cat([mine, one], 1), others.T, out=room[: len(part)])
        there = (place[rows[part]] >= 0).nonzero()[:, 0]
        now[there, place[rows[part][there]]] = torch.inf  # oneself
        best = _smallest(now.view(len(part), height, groups), count)
        found[part] = columns[best]
        far[part] = mine.square().sum(1, keepdim=True) + 2 * now.gather(1, best)
    return found, far


def _smallest(far: Tensor, count: int) -> Tensor:
    """Where the smallest numbers of each far[i] [height, groups] are, if that is read flat."""
    rows, height, groups = far.shape
    best = far.amin(1).topk(count, largest=False, sorted=False).indices
    there = far.gather(2, best[:, None].expand(rows, height, count)).flatten(1)
    place = there.topk(count, largest=False).indices
    return place // count * groups + best.gather(1, place % count)


class Hits(NamedTuple):
    """Rows, a neighbour of each, and the squared distance."""

    of: NDArray[np.int64]
    who: NDArray[np.int64]
    z: NDArray[np.float32]


class Pairs:
    """Pairs of rows, one within the other's limit, until a row has met all others."""

    def __init__(self, limit: NDArray[np.float32], most: int) -> None:
        self.limit, self.most = limit, most
        self.met = np.zeros(len(limit), np.int64)
        self.kept: dict[int, list[Hits]] = defaultdict(list)

    def add(
        self, first: int, start: int, far: NDArray[np.float32], near: NDArray[np.bool_]
    ) -> None:
        """Distances minus the rows' limits, of the rows from `first` to those from `start` on."""
        place = np.flatnonzero(near)
        i, j = np.divmod(place, near.shape[1])
        z, i, j = far.ravel()[place] + self.limit[first + i], i + first, j + start
        other = i != j
        self.keep(Hits(i[other], j[other], z[other]))
        # a block's rows meet each other in both orders, all later ones in one
        back = (j >= first + len(far)) & (z < self.limit[j])
        self.keep(Hits(j[back], i[back], z[back]))

    def keep(self, hits: Hits) -> None:
        self.met += np.bincount(hits.of, minlength=len(self.met))
        few = self.met[hits.of] <= self.most
        block = hits.of[few] // BLOCK
        for number in np.unique(block).tolist():
            self.kept[number].append(Hits(*(t[few][block == number] for t in hits)))

    def nearest(self, first: int, rows: int, count: int) -> Tensor:
        """Of every row of a block the nearest, where there are as many."""
        hits = self.kept.pop(first // BLOCK, [])
        if not sum(len(hit.of) for hit in hits):  # all limits are bad
            return torch.zeros(rows, count, dtype=torch.int64)
        of, who, z = (np.concatenate(t) for t in zip(*hits, strict=True))
        # by row, then by distance: not negative, its bits are in the order of the numbers
        order = np.argsort((of << 32) + np.maximum(z, 0).view(np.int32))
        begin = np.searchsorted(of[order], np.arange(first, first + rows))
        place = np.minimum(begin[:, None] + np.arange(count), len(order) - 1)
        return torch.from_numpy(who[order[place]])

    def right(self, count: int) -> Tensor:
        return torch.from_numpy((self.met >= count) & (self.met <= self.most))


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
