"""Who visits whom when: the rounds of an epoch in which models go round the clients.

A plan [T, N] says for each of the T rounds which client every model visits, -1 for none. No
client has two visitors in one round, and each visit that is wanted is made, as often as wanted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# T*N^2 beyond which packing takes longer (half a minute) than it is worth
MOST_WORK = 3e9

# clients up to which a plan is made as a table of all pairs
DENSE = 2_000

Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


def cyclic(wanted: Tensor, random: np.random.Generator) -> Tensor:
    """N rounds, in round j model i at client sigma((i + j) mod N), sigma a random order."""
    n = len(wanted)
    order = torch.from_numpy(random.permutation(n))
    places = torch.arange(n)
    plan = order[(places[:, None] + places) % n]
    return plan.where(wanted.cpu()[places, plan], -1)


def packed(wanted: Tensor, random: np.random.Generator) -> Tensor:
    """The fewest rounds there can be: as many as the busiest model or client has visits.

    `wanted` says which visits, or how many of each. Visits that change nothing ("idle") make all
    equally busy; then there is always a round in which every model and every client has exactly
    one visit (Birkhoff), and taking it away leaves all equally busy again. This takes time T*N^2;
    where that is very long (2,000 clients of which each learns from half of the others) each
    visit, in a random order, takes the first round that is free: at most twice as many rounds.
    """
    n = len(wanted)
    models, hosts = random.permutation(n), random.permutation(n)
    due: Counts = wanted.numpy(force=True)[np.ix_(models, hosts)].astype(np.int64)
    rounds = int(max(due.sum(0).max(), due.sum(1).max()))
    if rounds * n * n > MOST_WORK:
        return first_free(wanted, random)
    idle = _idle_visits(rounds - due.sum(1), rounds - due.sum(0))
    plan, place = np.full((rounds, n), -1), np.arange(n)
    for t in random.permutation(rounds):
        host = _everybody_once((due > 0) | (idle > 0))
        real = due[place, host] > 0
        plan[t, models] = np.where(real, hosts[host], -1)
        idle[place[~real], host[~real]] -= 1
        due[place[real], host[real]] -= 1
    return torch.from_numpy(plan)


def first_free(wanted: Tensor, random: np.random.Generator) -> Tensor:
    """Visits one after the other, each in the first round in which model and host are free."""
    n, counts = len(wanted), wanted.cpu().long()
    pairs = counts.nonzero().repeat_interleave(counts[counts > 0], 0)
    made = _one_by_one(pairs, n, random)
    rounds = 1 + int(made[:, 0].max()) if len(made) else 0
    plan = torch.full((rounds, n), -1)
    plan[made[:, 0], made[:, 1]] = made[:, 2]
    return plan[torch.from_numpy(random.permutation(rounds))]


def visits(often: Tensor, kin: Tensor, random: np.random.Generator) -> Tensor:
    """A plan as a list of its visits [V, 3], each (round, model, host), in this order.

    `often` says how many visits model i makes at client kin[i, k]. Where there are very many
    clients visits take the first round that is free (see `packed`), in time V.
    """
    n = len(kin)
    if n <= DENSE:
        wanted = torch.zeros(n, n, dtype=torch.int64).scatter_add_(1, kin, often)
        plan = packed(wanted, random)
        at = (plan >= 0).nonzero()
        return torch.cat([at, plan[at[:, 0], at[:, 1], None]], 1)
    model, place = often.nonzero().T
    pairs = torch.stack([model, kin[model, place]], 1)
    made = _one_by_one(pairs.repeat_interleave(often[model, place], 0), n, random)
    return made[(made[:, 0] * n + made[:, 1]).argsort()]


def together(plans: Sequence[Tensor], rounds: int, random: np.random.Generator) -> Tensor:
    """Lists of visits as one [V, 4], (number of the list, round, model, host), each with its
    rounds in a random order."""
    found = []
    for number, plan in enumerate(plans):
        when = torch.from_numpy(random.permutation(rounds)).argsort()[plan[:, 0]]
        found.append(torch.stack([torch.full_like(when, number), when, *plan[:, 1:].T], 1))
    return torch.cat(found).int()


def _one_by_one(pairs: Tensor, n: int, random: np.random.Generator) -> Tensor:
    """Each visit (model, host), in a random order, in the first round that is free: [V, 3]."""
    of_model, of_host = [0] * n, [0] * n  # the rounds that are taken, as bits
    made = np.empty((len(pairs), 3), np.int64)
    order = pairs[torch.from_numpy(random.permutation(len(pairs)))]
    made[:, 1:] = order.numpy()
    numbers = array("q")
    for model, host in order.tolist():
        free = ~(of_model[model] | of_host[host])
        bit = free & -free
        of_model[model] |= bit
        of_host[host] |= bit
        numbers.append(bit.bit_length() - 1)
    made[:, 0] = numbers
    return torch.from_numpy(made)


def in_proportion(alpha: Tensor, visits: int, random: np.random.Generator) -> Tensor:
    """How often each model visits each client: `visits` times in all, alpha_i(c)*visits on average.

    Rounded up or down at random, with one random number for each model (systematic sampling);
    a model without weights makes no visits.
    """
    ends = (visits * alpha.double()).cumsum(1)
    ends = torch.where(ends[:, -1:] > 0, ends * visits / ends[:, -1:].clamp(min=1e-300), 0.0)
    passed = (ends + torch.from_numpy(random.random((len(alpha), 1)))).floor().long()
    return passed.diff(dim=1, prepend=passed.new_zeros(len(passed), 1))


def tours(wanted: Tensor, random: np.random.Generator) -> Tensor:
    """Each model [M] at every place, as often as it wants [M, P], in random orders: [T, M], -1 for
    none.

    Unlike in a plan, several models may be at one place: those of newcomers, who come seldom.
    """
    places = np.arange(wanted.shape[1])
    often = wanted.numpy(force=True).astype(np.int64)
    rows = [random.permutation(np.repeat(places, row)) for row in often]
    plan = np.full((max(map(len, rows)), len(rows)), -1)
    for model, order in enumerate(rows):
        plan[: len(order), model] = order
    return torch.from_numpy(plan)


def _idle_visits(of_models: Counts, at_clients: Counts) -> Counts:
    """Numbers of visits [N, N] with these sums over rows and over columns."""
    found = np.zeros((len(of_models), len(at_clients)), np.int64)
    rows, columns = np.cumsum(of_models), np.cumsum(at_clients)
    ends = np.union1d(rows, columns)
    ends = ends[ends > 0]
    # both sums cut the line 0 .. total into stretches: each common stretch is one entry
    row, column = np.searchsorted(rows, ends), np.searchsorted(columns, ends)
    found[row, column] = np.diff(ends, prepend=0)
    return found


def _everybody_once(allowed: Flags) -> Any:
    """A column for every row, all different, each of them allowed."""
    from scipy.sparse import csr_array  # imported here: not every method needs it
    from scipy.sparse.csgraph import maximum_bipartite_matching

    columns = np.nonzero(allowed)[1].astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(allowed.sum(1))]).astype(np.int32)
    graph = csr_array((np.ones(len(columns), np.int8), columns, starts), shape=allowed.shape)
    return maximum_bipartite_matching(graph, perm_type="column")
