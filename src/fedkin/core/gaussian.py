"""Gaussian noise: seeded and repeatable in simulations, from the system's secrets elsewhere."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from fedkin.core import rng

Floats = NDArray[np.float64]


def of_keys(keys: rng.Bits, purpose: str, count: int) -> Floats:
    """Standard normal numbers [keys, count] that depend on the keys alone."""
    words = rng.bits(rng.key(keys, purpose), rng.positions(0, 2 * count))
    return _normal(words[:, :count], words[:, count:])


def secret(rows: int, count: int) -> Floats:
    """Standard normal numbers [rows, count] that nobody can compute again: from os.urandom."""
    size = 8 * rows * count
    words = (np.frombuffer(os.urandom(size), np.uint64).reshape(rows, count) for _ in range(2))
    return _normal(*words)


def _normal(one: rng.Bits, other: rng.Bits) -> Floats:
    """Box and Muller's transform, in double precision; a uniform number is never 0."""
    radius = np.sqrt(-2 * np.log1p(-rng.uniform(one)))
    return np.asarray(radius * np.cos(2 * np.pi * rng.uniform(other)))
