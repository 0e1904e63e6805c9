"""One file per published method. Importing this package registers them all."""

from fedkin.methods.base import LocalWork, Method, State
from fedkin.methods.fedavg import FedAvg, LocalizedFedAvg
from fedkin.methods.fedprox import FedProx
from fedkin.methods.local import Local
from fedkin.methods.scaffold import Scaffold

__all__ = [
    "FedAvg",
    "FedProx",
    "Local",
    "LocalWork",
    "LocalizedFedAvg",
    "Method",
    "Scaffold",
    "State",
]
