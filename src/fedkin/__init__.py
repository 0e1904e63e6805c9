"""Fedkin: one model per client, from data that never leave them."""

from fedkin import methods
from fedkin.core.faults import Faults
from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.data import ClientData, DataConfig, from_arrays, load
from fedkin.errors import DivergedError, FedkinError
from fedkin.methods import Method, State
from fedkin.methods.registry import all_methods, get_method, register
from fedkin.runs.run import Run
from fedkin.runs.settings import Settings
from fedkin.runs.stored import open_run
from fedkin.runs.training import train
from fedkin.version import __version__

__all__ = [
    "ClientData", "DataConfig", "DivergedError", "Faults", "Federation", "FedkinError", "Method",
    "Problem", "Run", "Settings", "State", "__version__", "all_methods", "from_arrays",
    "get_method", "load", "methods", "open_run", "register", "train",
]  # fmt: skip
