"""From a data configuration to clients."""

from __future__ import annotations

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
    if config.name == "crowd":
        if config.folds:
            raise FedkinError(f"the data 'crowd' have no folds: leave test = {config.test} out")
        return with_facts(crowd(config, seed), config)
    data = build(SOURCES[config.name](config, stream(seed, 0)), config, seed)
    return with_facts(data, config)
