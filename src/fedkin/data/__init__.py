"""Data sets, tables, partitions and synthetic generators."""

from fedkin.data.clients import ClientData, Examples
from fedkin.data.config import DataConfig
from fedkin.data.load import load

__all__ = ["ClientData", "DataConfig", "Examples", "load"]
