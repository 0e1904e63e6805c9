"""Generators: data whose truth is known, as the papers describe them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedkin.data.clients import Truth
from fedkin.data.config import DataConfig
from fedkin.data.partition import Array, Rows
from fedkin.data.pool import Pool


def digits(config: DataConfig, rng: np.random.Generator) -> Pool:
    """Scikit-learn's 1,797 handwritten digits, 8 x 8, in [0, 1]."""
    table = _digits_table()
    images = (table[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    return Pool(images, table[:, -1].astype(np.int64), 10)


def _digits_table() -> Array:
    """64 pixels and the class of every digit, from scikit-learn's own file: importing what
    reads it takes a second."""
    home = find_spec("sklearn")
    file = Path(home.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if home else None
    if file is not None and file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    found = load_digits()
    return np.column_stack([found.data, found.target])


def perm(config: DataConfig, rng: np.random.Generator) -> Pool:
    """PERM, figure 1: two halves with opposite inputs and opposite labels.

    x ~ N(+-0.2 * 1, S), S_kk = k^-1.2; y = [+-w.x > 0] with one w ~ N(0.1 * 1, I).
    """
    n, samples, dim = _sizes(config)
    w = rng.normal(0.1, 1, dim)
    half = np.arange(n) * 2 // n
    parts = []
    for sign in 1 - 2 * half:
        x = rng.normal(0.2 * sign, _deviations(dim), (samples, dim))
        parts.append(_pair(x, sign * (x @ w) > 0))
    return Pool.of_clients(parts, 2, groups=half)


def fedprox(config: DataConfig, rng: np.random.Generator) -> Pool:
    """FedProx's synthetic(a, b): a controls how models differ, b how inputs differ."""
    return _fedprox(config, rng, np.zeros(_clients(config)))


def pfedkm(config: DataConfig, rng: np.random.Generator) -> Pool:
    """pFedKM's synthetic data: synthetic(a, b) in three clusters, B_k around -3b, 0, 3b."""
    n = _clients(config)
    cluster = np.arange(n) * 3 // n
    pool = _fedprox(config, rng, 3 * config.synthetic_b * (cluster - 1.0))
    pool.groups = cluster
    return pool


def _fedprox(config: DataConfig, rng: np.random.Generator, centre: Array) -> Pool:
    """W_k, b_k ~ N(u_k, 1), u_k ~ N(0, a); x ~ N(v_k, S), v_k ~ N(B_k, 1), B_k ~ N(centre_k, b).

    S_jj = j^-1.2; y = argmax(W_k x + b_k) of ten classes. As in the authors' program a and b
    are deviations and sizes are lognormal(4, 2) + 50 unless `samples` fixes them. u_k has a number
    for every class. The program has one for all classes, which adds the same to all ten logits
    of a sample: its labels do not depend on a at all.
    """
    n, dim, classes = _clients(config), _dim(config), 10
    sizes = rng.lognormal(4, 2, n).astype(np.int64) + 50
    if config.samples is not None:
        sizes[:] = config.samples
    u = rng.normal(0, config.synthetic_a, (n, classes))
    shift = rng.normal(centre, config.synthetic_b)
    parts = []
    for k in range(n):
        v = rng.normal(shift[k], 1, dim)
        w, b = rng.normal(u[k], 1, (dim, classes)), rng.normal(u[k], 1, classes)
        x = rng.normal(v, _deviations(dim), (sizes[k], dim))
        parts.append(_pair(x, (x @ w + b).argmax(1)))
    return Pool.of_clients(parts, classes)


def unified(config: DataConfig, rng: np.random.Generator) -> Pool:
    """Unified framework, figure 1: logistic models around a common one, apart by `spread` s.

    w ~ U[.49, .51]; beta_m = w + U[mu_m - .01, mu_m + .01], mu_m ~ N(0, s^2);
    x ~ U[.2, .5]; y ~ Bernoulli(1 / (1 + exp(-beta_m.x))).
    """
    n, samples, dim = _sizes(config)
    w = rng.uniform(0.49, 0.51, dim)
    parts, betas = [], []
    for mu in rng.normal(0, config.spread or 0.0, n):
        betas.append(w + rng.uniform(mu - 0.01, mu + 0.01, dim))
        x = rng.uniform(0.2, 0.5, (samples, dim))
        parts.append(_pair(x, rng.random(samples) < _sigmoid(x @ betas[-1])))
    return Pool.of_clients(parts, 2, truth=_truth(betas, w))


def unified_ws(config: DataConfig, rng: np.random.Generator) -> Pool:
    """Unified framework, figure 2: the last 5 features have own weights, the others shared ones.

    w ~ N(0, 1); beta_m ~ U[mu_m - .01, mu_m + .01], mu_m ~ N(0, s^2); x ~ U[0, .1].
    """
    n, samples, dim = _sizes(config)
    own = min(5, dim)
    w = rng.normal(0, 1, dim - own)
    parts, betas = [], []
    for mu in rng.normal(0, config.spread or 0.0, n):
        betas.append(np.concatenate([w, rng.uniform(mu - 0.01, mu + 0.01, own)]))
        x = rng.uniform(0, 0.1, (samples, dim))
        parts.append(_pair(x, rng.random(samples) < _sigmoid(x @ betas[-1])))
    return Pool.of_clients(parts, 2, truth=_truth(betas))


def linear(config: DataConfig, rng: np.random.Generator) -> Pool:
    """Linear regression: y = w_m.x + noise, w_m = w + spread * N(0, I), x ~ N(0, I)."""
    n, samples, dim = _sizes(config)
    w = rng.normal(0, 1, dim)
    parts, betas = [], []
    for _ in range(n):
        betas.append(w + (config.spread or 0.0) * rng.normal(0, 1, dim))
        x = rng.normal(0, 1, (samples, dim))
        y = x @ betas[-1] + config.noise * rng.normal(0, 1, samples)
        parts.append((x.astype(np.float32), y.astype(np.float32)))
    return Pool.of_clients(parts, None, truth=_truth(betas, w))


def _clients(config: DataConfig) -> int:
    assert config.num_clients is not None  # every generator has a default: config.DATASETS
    return config.num_clients


def _dim(config: DataConfig) -> int:
    assert config.dim is not None
    return config.dim


def _sizes(config: DataConfig) -> tuple[int, int, int]:
    assert config.samples is not None
    return _clients(config), config.samples, _dim(config)


def _deviations(dim: int) -> Array:
    """Square roots of the variances k^-1.2."""
    deviations: Array = np.arange(1, dim + 1) ** -0.6
    return deviations


def _pair(x: Array, y: Array) -> tuple[Array, Rows]:
    return x.astype(np.float32), y.astype(np.int64)


def _truth(betas: list[Array], w: Array | None = None) -> Truth:
    return Truth(torch.from_numpy(np.stack(betas)), None if w is None else torch.from_numpy(w))


def _sigmoid(z: Array) -> Array:
    p: Array = 1 / (1 + np.exp(-z))
    return p
