"""Step sizes that theorems take, as settings of the methods they are about."""

from __future__ import annotations

from math import log
from typing import Any


def perm_steps(
    smooth: float, convex: float, clients: int, local_steps: int, epochs: int
) -> dict[str, Any]:
    """Settings of PERM for clients' losses that are `smooth`-smooth and `convex`-strongly convex.

    An epoch of the printed schedule (N rounds of K steps eta*N*alpha) brings a model nearer to
    the optimum of its weighted objective by the factor 1 - eta*mu*N*K. With
    eta = log(N K R^3)/(mu N K R) what R epochs leave of the start is 1/(N K R^3), below what
    shuffling leaves anyway. eta is at most 1/(L N K), so that an epoch is no longer than one step
    1/L; w steps by gamma = 1/L, and the output takes the step 1/L of the polish. That is our
    reading: the paper's theorems give such steps as orders of size, and constant factors and
    the power of R within the logarithm are chosen here.
    """
    work = clients * local_steps
    eta = min(log(work * epochs**3) / (convex * work * epochs), 1 / (smooth * work))
    return {
        "lr": eta, "gamma": 1 / smooth, "polish": 1 / smooth, "local_steps": local_steps,
        "schedule": "cyclic", "step_limit": 1e9,
    }  # fmt: skip
