"""From a data configuration to clients."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from fedkin.data import arrays, cifar, hub, idx, images, synthetic, tables
from fedkin.data.build import build, stream
from fedkin.data.clients import ClientData
from fedkin.data.config import DataConfig
from fedkin.data.crowd import crowd
from fedkin.data.facts import with_facts
from fedkin.data.pool import Pool
from fedkin.errors import FedkinError

Source = Callable[[DataConfig, np.random.Generator], Pool]

# of a client where the generator draws how many it has
LEAST_SAMPLES = 50

SOURCES: dict[str, Source] = {
    "digits": synthetic.digits,
    "rotated-digits": synthetic.digits,
    "perm-synthetic": synthetic.perm,
    "pfedkm-synthetic": synthetic.pfedkm,
    "synthetic": synthetic.fedprox,
    "linear": synthetic.linear,
    "unified-synthetic": synthetic.unified,
    "unified-ws": synthetic.unified_ws,
    "mnist": idx.read_idx_set,
    "fashion-mnist": idx.read_idx_set,
    "kmnist": idx.read_idx_set,
    "emnist": idx.read_idx_set,
    "cifar10": cifar.read_cifar,
    "cifar100": cifar.read_cifar,
    "images": images.read_images,
    "npz": arrays.read_npz,
    "csv": tables.read_table,
    "parquet": tables.read_table,
    "hf": hub.read_hub,
}


def load(config: DataConfig, seed: int) -> ClientData:
    """The clients `config` describes; the same configuration and seed give the same bits."""
    config = config.resolved()
    if config.dim is not None:
        _check_size(config.num_clients or 1, config.samples or LEAST_SAMPLES, config.dim)
    if config.name == "crowd":
        if config.folds:
            raise FedkinError(f"the data 'crowd' have no folds: leave test = {config.test} out")
        return with_facts(crowd(config, seed), config)
    data = build(SOURCES[config.name](config, stream(seed, 0)), config, seed)
    return with_facts(data, config)


def _check_size(clients: int, samples: int, dim: int) -> None:
    """Refuse generated data that this machine cannot hold, before years go into making them."""
    needed = 4 * clients * samples * dim
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise FedkinError(
            f"{clients} clients with {samples} samples of {dim} numbers need {needed / 1e9:.0f} GB "
            f"but this machine has {memory / 1e9:.0f} GB; lower num_clients, samples or dim"
        )
