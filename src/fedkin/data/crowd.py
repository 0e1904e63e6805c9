"""A generator for very many clients: any part of them can be made without the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from fedkin.data.clients import ClientData, Examples
from fedkin.data.config import DataConfig
from fedkin.data.partition import Array

CLASSES = 10
# clients whose random numbers come from one stream
CHUNK = 1000


def crowd(config: DataConfig, seed: int, first: int = 0, last: int | None = None) -> ClientData:
    """Clients first .. last-1: y = argmax(W_k x), W_k = W + spread*N(0, I), x ~ N(0, I).

    A client's samples depend on the seed and its number alone.
    """
    clients, samples, dim, held = _sizes(config)
    last = clients if last is None else last
    x = np.empty((last - first, samples, dim), np.float32)
    y = np.empty((last - first, samples), np.int64)
    for lo, hi, own_x, own_y in _chunks(config, seed, first, last):
        x[lo - first : hi - first], y[lo - first : hi - first] = own_x, own_y
    train, test = (slice(held, None), slice(None, held))
    return ClientData(
        _examples(x[:, train], y[:, train]),
        _examples(x[:, test], y[:, test]),
        CLASSES,
        names=tuple(str(i) for i in range(first, last)),
    )


def crowd_elsewhere(config: DataConfig) -> ClientData:
    """All clients of a crowd without their samples."""
    clients, samples, dim, held = _sizes(config)
    x, y = torch.zeros(2, dim), torch.zeros(2, dtype=torch.int64)

    def blank(count: int) -> Examples:
        return Examples.elsewhere(torch.full((clients,), count), x, y)

    return ClientData(blank(samples - held), blank(held), CLASSES)


def _sizes(config: DataConfig) -> tuple[int, int, int, int]:
    """Clients, samples of each, features, and how many samples of each are for testing."""
    assert config.num_clients is not None
    assert config.samples is not None
    assert config.dim is not None
    assert config.test_fraction is not None
    held = min(config.samples - 1, round(config.test_fraction * config.samples))
    return config.num_clients, config.samples, config.dim, held


def _chunks(
    config: DataConfig, seed: int, first: int, last: int
) -> Iterator[tuple[int, int, Array, Array]]:
    _, samples, dim, _ = _sizes(config)
    common = np.random.default_rng([seed, 0]).normal(0, 1, (dim, CLASSES))
    for number in range(first // CHUNK, -(-last // CHUNK)):
        rng = np.random.default_rng([seed, 1, number])
        start = number * CHUNK
        lo, hi = max(first, start), min(last, start + CHUNK)
        own = slice(lo - start, hi - start)
        w = common + (config.spread or 0.0) * rng.standard_normal((CHUNK, dim, CLASSES), np.float32)
        x = rng.standard_normal((CHUNK, samples, dim), np.float32)[own]
        yield lo, hi, x, np.einsum("ksd,kdc->ksc", x, w[own]).argmax(2)


def _examples(x: Array, y: Array) -> Examples:
    clients, samples = y.shape
    offsets = torch.arange(clients + 1) * samples
    flat = np.ascontiguousarray(x).reshape(clients * samples, x.shape[-1])
    return Examples(torch.from_numpy(flat), torch.from_numpy(y.reshape(-1).copy()), offsets)
