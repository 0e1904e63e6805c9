"""Counter-based random numbers: each depends only on its key and its position.

A key is made of whole numbers and names, for us (seed, round, call, client, purpose).
Drawing the tenth number needs none of the nine before it, so the same run gives the
same numbers in any engine, block size or number of threads, and after a resume.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_ALL_ONES = 2**64 - 1


def _scramble(z: Bits) -> Bits:
    """SplitMix64's finaliser: a bijection of 64-bit words in which every input bit counts."""
    mixed = z >> np.uint64(30)  # from here on in one array: memory is what this waits for
    mixed ^= z
    mixed *= _FACTOR_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _FACTOR_2
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _scramble_one(z: int) -> int:
    """As `_scramble`, for one word: much quicker than an array of one."""
    z = ((z ^ (z >> 30)) * int(_FACTOR_1)) & _ALL_ONES
    z = ((z ^ (z >> 27)) * int(_FACTOR_2)) & _ALL_ONES
    return z ^ (z >> 31)


def key(*parts: Any) -> Bits:
    """One key per row from numbers, names and arrays of numbers (which broadcast)."""
    prefix, rest = 0, list(parts)
    while rest and isinstance(rest[0], int | str):
        part = rest.pop(0)
        word = zlib.crc32(part.encode()) if isinstance(part, str) else part & _ALL_ONES
        prefix = _scramble_one(((prefix ^ word) + int(_GOLDEN)) & _ALL_ONES)
    result = np.array([prefix], np.uint64)
    for part in rest:
        word = zlib.crc32(part.encode()) if isinstance(part, str) else part
        words = np.atleast_1d(np.asarray(word)).astype(np.int64).view(np.uint64)
        result = _scramble((result ^ words) + _GOLDEN)
    return result


def bits(keys: Bits, positions: Bits) -> Bits:
    """The 64 random bits at these positions of each key's stream: shape [keys, positions]."""
    lane = keys.reshape(-1, *[1] * positions.ndim)
    return _scramble(lane + (positions + np.uint64(1)) * _GOLDEN)


def bits_of_rows(keys: Bits, lanes: Bits) -> Bits:
    """As `bits`, with positions of its own for every key: lanes [keys, k]."""
    return _scramble(keys[:, None] + (lanes + np.uint64(1)) * _GOLDEN)


def positions(start: int, *shape: int) -> Bits:
    """Consecutive stream positions from `start`, in this shape."""
    count = int(np.prod(shape))
    return np.arange(start, start + count, dtype=np.uint64).reshape(shape)


def below(limits: NDArray[np.int64], words: Bits) -> NDArray[np.int64]:
    """Whole numbers drawn evenly from 0 .. limit-1 (limits below 2^32), one limit per row."""
    upper = limits.astype(np.uint64).reshape(-1, *[1] * (words.ndim - 1))
    return (((words >> np.uint64(32)) * upper) >> np.uint64(32)).astype(np.int64)


def uniform(words: Bits, digits: int = 53) -> NDArray[np.float64]:
    """Numbers in [0, 1) with so many random bits; single precision holds 24 without rounding."""
    return np.asarray((words >> np.uint64(64 - digits)) * 2.0**-digits)
