"""Epsilon of what a run has released, by Google's dp-accounting (extra `privacy`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.errors import FedkinError

# how many sums and single rows a round released
Kind = tuple[int, int]
# orders of Renyi divergences that are tried; of sampling without replacement bounds are known at
# whole ones only, and large ones take long
WHOLE = (*range(2, 64), 128, 256)
COARSE = (2, 3, 4, 6, 8, 11, 16, 24, 32, 48, 63, 128, 256)
LEAST, MOST, NEAR = 0.05, 1e4, 1e-3


def need_accounting() -> None:
    """Refuse differential privacy where its accountant is not installed."""
    try:
        found = find_spec("dp_accounting.rdp")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise FedkinError(
            "differential privacy needs its accountant: pip install 'fedkin[privacy]'"
        )


@dataclass(frozen=True)
class Sampling:
    """How clients come to take part in a round: `all` of them, each with probability `share`
    (`poisson`), or `asked` of `clients` without replacement (`fixed`)."""

    kind: str
    share: float
    asked: int
    clients: int

    @property
    def adjacency(self) -> str:
        """What two federations are to be told apart by."""
        return "replace one client" if self.kind == "fixed" else "add or remove one client"

    @property
    def changes(self) -> float:
        """What one client changes in a sum at most, in units of the limit of its row."""
        return 2.0 if self.kind == "fixed" else 1.0

    @property
    def accountant(self) -> str:
        if self.kind == "all":
            return "exact epsilon of composed Gaussian mechanisms (dp-accounting)"
        return "Renyi differential privacy (dp-accounting)"


def epsilon(rounds: Mapping[Kind, int], noise: float, sampling: Sampling, delta: float) -> float:
    """What rounds of these kinds cost, with noise of z = `noise` on each sum and each row.

    Sums of one round are of the same clients, so that k of them are one sum with z/sqrt(k), drawn
    once. Rows that travel alone are not hidden by sampling.
    """
    done = {kind: count for kind, count in rounds.items() if count and any(kind)}
    if not done:
        return 0.0
    if noise <= 0:
        return inf
    if sampling.kind == "all":
        import dp_accounting as dp

        total = sum(count * sum(kind) for kind, count in done.items())
        return float(dp.get_epsilon_gaussian(noise / sqrt(total), delta))
    return _of_orders(done, noise, sampling, delta, None)


def _of_orders(
    rounds: Mapping[Kind, int], noise: float, sampling: Sampling, delta: float,
    orders: tuple[float, ...] | None,
) -> float:  # fmt: skip
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    found = {kind: _divergences(kind, noise, sampling, orders) for kind in rounds}
    tried = next(iter(found.values()))[0]
    total = sum(count * found[kind][1] for kind, count in rounds.items())
    return float(compute_epsilon(tried, total, delta)[0])


@lru_cache(maxsize=64)
def _divergences(
    kind: Kind, noise: float, sampling: Sampling, orders: tuple[float, ...] | None
) -> tuple[Any, NDArray[np.float64]]:
    """Orders, and the Renyi divergence at each that one round of a kind costs."""
    import dp_accounting as dp
    from dp_accounting import rdp

    fixed = sampling.kind == "fixed"
    relation = dp.NeighboringRelation
    accountant = rdp.RdpAccountant(
        orders or (WHOLE if fixed else None),
        relation.REPLACE_ONE if fixed else relation.ADD_OR_REMOVE_ONE,
    )
    (sums, rows), z = kind, noise / sampling.changes
    # orders at which its series do not converge are left out, which it need not tell everybody
    logging.getLogger("absl").setLevel(logging.ERROR)
    if sums:
        event = dp.GaussianDpEvent(z / sqrt(sums))
        accountant.compose(
            dp.SampledWithoutReplacementDpEvent(sampling.clients, sampling.asked, event)
            if fixed
            else dp.PoissonSampledDpEvent(sampling.share, event)
        )
    if rows:
        accountant.compose(dp.GaussianDpEvent(z / sqrt(rows)))
    # composed once and added up here: composing anew takes a second for every round
    return accountant._orders, np.asarray(accountant._rdp)


def find_noise(wanted: float, delta: float, rounds: int, kind: Kind, sampling: Sampling) -> float:
    """The least z with which so many rounds of a kind cost no more than `wanted`."""
    spent = {kind: rounds}

    def cost(z: float, coarse: bool) -> float:
        if not coarse or sampling.kind == "all":
            return epsilon(spent, z, sampling, delta)
        return _of_orders(spent, z, sampling, delta, COARSE)

    low, high = log(LEAST), log(MOST)
    if cost(MOST, True) > wanted:
        raise FedkinError(
            f"dp_epsilon = {wanted:g} with dp_delta = {delta:g} cannot be kept for {rounds} "
            "rounds, however much noise is added: allow more, or train for fewer rounds"
        )
    while high - low > NEAR:
        middle = (low + high) / 2
        low, high = (low, middle) if cost(exp(middle), True) <= wanted else (middle, high)
    # the coarse bound is never below the fine one: a little less noise may be enough
    best = exp(high)
    for _ in range(8 if sampling.kind == "poisson" else 0):
        if cost(best * 0.995, False) > wanted:
            break
        best *= 0.995
    return best
