"""From a data configuration to clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedkin.data import synthetic
from fedkin.data.build import build, stream
from fedkin.data.clients import ClientData
from fedkin.data.config import DataConfig
from fedkin.data.pool import Pool
from fedkin.errors import unknown

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
}


def load(config: DataConfig, seed: int) -> ClientData:
    """The clients `config` describes; the same configuration and seed give the same bits."""
    config = config.resolved()
    if config.name not in SOURCES:
        raise unknown("data set", config.name, SOURCES)
    return build(SOURCES[config.name](config, stream(seed, 0)), config, seed)
