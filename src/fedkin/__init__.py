"""Fedkin: one model per client, from data that never leave them."""

from fedkin.data import ClientData, DataConfig, from_arrays, load
from fedkin.errors import DivergedError, FedkinError
from fedkin.faults import Faults
from fedkin.federation import Federation
from fedkin.methods import Method, State
from fedkin.problem import Problem
from fedkin.registry import get_method, methods, register
from fedkin.results.run import Run
from fedkin.results.stored import open_run
from fedkin.settings import Settings
from fedkin.training import train

__version__ = "0.1.0"

__all__ = [
    "ClientData", "DataConfig", "DivergedError", "Faults", "Federation", "FedkinError", "Method",
    "Problem", "Run", "Settings", "State", "from_arrays", "get_method", "load", "methods",
    "open_run", "register", "train",
]  # fmt: skip
