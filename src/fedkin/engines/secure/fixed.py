"""Numbers as integers modulo 2^64, so that masks can hide them and sums are exact.

A number x becomes round(x * 2^bits). Each site's rounding error is at most 2^-(bits+1), so that
of a sum of n sites at most n * 2^-(bits+1), and that of their mean at most 2^-(bits+1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.errors import FedkinError

Words = NDArray[np.uint64]
# what an answer consists of: each tensor's name, type and shape without the row
Layout = list[tuple[str, str, list[int]]]

FRACTION_BITS = 32  # of what clients train; a site's error is at most 2^-33
COUNT_BITS = 20  # of counts and scores, which may be large
SMALLEST, LARGEST_BITS = 8, 48
MOST_NUMBERS = 2**28


def largest(bits: int, sites: int) -> float:
    """The largest size of a number such that the sum of so many sites cannot overflow."""
    return 2.0 ** (63 - bits) / sites * (1 - 2.0**-20)


def layout_of(rows: Mapping[str, Tensor]) -> Layout:
    """Of an answer whose tensors have one row each."""
    return [(name, str(v.dtype)[6:], list(v.shape[1:])) for name, v in sorted(rows.items())]


def encode(rows: Mapping[str, Tensor], weight: float, bits: int, sites: int) -> Words:
    """An answer, times a weight, as words. Refuses what could overflow."""
    parts = [rows[name].detach().cpu().double().flatten().numpy() for name in sorted(rows)]
    x = np.concatenate(parts) * weight if parts else np.zeros(0)
    limit = largest(bits, sites)
    if not float(np.abs(x).max(initial=0.0)) <= limit:  # also when it is not a number
        # the number itself is for nobody: this sentence goes to the server
        raise FedkinError(
            f"its answer has a number beyond {limit:.3g}, the largest that a secure sum of {sites} "
            "sites takes"
        )
    return np.rint(x * 2.0**bits).astype(np.int64).view(np.uint64)


def decode(total: Words, bits: int, layout: Layout) -> dict[str, Tensor]:
    """The tensors of a sum, without rows."""
    numbers = torch.from_numpy(total.view(np.int64) / 2.0**bits)
    found, at = dict[str, Tensor](), 0
    for name, kind, shape in layout:
        dtype = getattr(torch, kind)
        count = int(np.prod(shape, dtype=np.int64))
        value = numbers[at : at + count].view(shape)
        found[name] = value.to(dtype) if dtype.is_floating_point else value
        at += count
    return found


def read_layout(value: Any) -> Layout:
    """A layout as a site says it, checked."""
    try:
        found = [(str(n), str(kind), [int(s) for s in shape]) for n, kind, shape in value]
        sizes = [s for _, _, shape in found for s in shape]
        kinds = [getattr(torch, kind) for _, kind, _ in found]
        if not all(isinstance(kind, torch.dtype) for kind in kinds) or min(sizes, default=0) < 0:
            raise ValueError
        if size_of(found) > MOST_NUMBERS:
            raise ValueError
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise FedkinError("its layout cannot be read") from None
    return found


def size_of(layout: Sequence[tuple[str, str, list[int]]]) -> int:
    """How many numbers there are in all."""
    total = 0
    for _, _, shape in layout:
        count = 1
        for side in shape:
            count *= side
        total += count
    return total
