"""Data sets, tables, partitions and synthetic generators."""

from fedkin.data.arrays import from_arrays
from fedkin.data.clients import ClientData, Examples
from fedkin.data.config import DATASETS, DataConfig
from fedkin.data.describe import checksum, describe, plot, summary
from fedkin.data.load import load

__all__ = [
    "DATASETS",
    "ClientData",
    "DataConfig",
    "Examples",
    "checksum",
    "describe",
    "from_arrays",
    "load",
    "plot",
    "summary",
]
