"""Metrics on examples drawn anew from a client's own: the noise of a small test set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy import special
from torch import Tensor

from fedkin.core import rng
from fedkin.core.metrics import Answers, Metric

# how many weights of examples are held at once while resampling
DRAWN_TOGETHER = 4_000_000


def resampled(
    a: Answers, metrics: Sequence[Metric], times: int, place: Tensor
) -> dict[str, Tensor]:
    """Every metric on examples drawn with replacement; 0 and not `known` where it has no value."""
    sizes = a.mask.sum(1).long().numpy(force=True)
    keys, n = _keys(place, "resample"), a.mask.shape[1]
    together = max(1, DRAWN_TOGETHER // max(1, a.mask.numel()))
    values: dict[str, list[Tensor]] = {m.name: [] for m in metrics}
    for first in range(0, times, together):
        count = min(together, times - first)
        # a draw's position in its stream does not depend on how rows are cut or padded
        at = (rng.positions(first, count)[:, None] << np.uint64(32)) + rng.positions(0, n)
        rows = torch.from_numpy(rng.below(sizes, rng.bits(keys, at))).to(a.mask.device)
        once = a.mask.double()[:, None].expand(len(sizes), count, n)
        weights = torch.zeros_like(once).scatter_add_(-1, rows, once)
        for m in metrics:
            values[m.name].append(m.value(m.sums(a, weights)))
    found = {}
    for name, own in values.items():
        all_ = torch.cat(own, 1)
        found[f"resampled {name}"] = all_.nan_to_num(0.0)
        found[f"known {name}"] = (~all_.isnan()).double()
    return found


def drawn(
    a: Answers, metrics: Sequence[Metric], times: int, place: Tensor, fold: Tensor
) -> dict[str, Tensor]:
    """Every metric's sums, one draw after the other, on examples drawn anew in one fold.

    Each example counts as often as a Poisson number of mean 1 says (the Poisson bootstrap), so
    draws of different folds can be added, even if each has a single example.
    """
    below = torch.from_numpy(special.pdtr(np.arange(20), 1.0))
    keys, n = _keys(place, "fold", fold), a.mask.shape[1]
    together = max(1, DRAWN_TOGETHER // max(1, a.mask.numel()))
    found: dict[str, list[Tensor]] = {m.name: [] for m in metrics}
    for first in range(0, times, together):
        count = min(together, times - first)
        at = (rng.positions(first, count)[:, None] << np.uint64(32)) + rng.positions(0, n)
        words = torch.from_numpy(rng.uniform(rng.bits(keys, at)))
        often = torch.bucketize(words, below, right=True).to(a.mask.device, torch.float64)
        weights = often * a.mask.double()[:, None]
        for m in metrics:
            found[m.name].append(m.sums(a, weights))
    return {f"drawn {name}": torch.cat(own, 1).flatten(1) for name, own in found.items()}


def _keys(*parts: Tensor | str) -> rng.Bits:
    """A key per client from columns and names."""
    return rng.key(*(p if isinstance(p, str) else p[:, 0].numpy(force=True) for p in parts))
