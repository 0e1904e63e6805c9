"""Fedkin: one model per client, from data that never leave them."""

from fedkin.core.faults import Faults
from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.data import ClientData, DataConfig, from_arrays, load
from fedkin.errors import DivergedError, FedkinError
from fedkin.methods import Method, State
from fedkin.methods.registry import get_method, methods, register
from fedkin.runs.run import Run
from fedkin.runs.settings import Settings
from fedkin.runs.stored import open_run
from fedkin.runs.training import train

__version__ = "0.1.0"

__all__ = [
    "ClientData", "DataConfig", "DivergedError", "Faults", "Federation", "FedkinError", "Method",
    "Problem", "Run", "Settings", "State", "from_arrays", "get_method", "load", "methods",
    "open_run", "register", "train",
]  # fmt: skip
