"""Fedkin: one model per client, from data that never leave them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedkin.errors import DivergedError, FedkinError
from fedkin.version import __version__

if TYPE_CHECKING:
    from fedkin import methods
    from fedkin.core.faults import Faults
    from fedkin.core.federation import Federation
    from fedkin.core.problem import Problem
    from fedkin.data import ClientData, DataConfig, from_arrays, load
    from fedkin.methods import Method, State
    from fedkin.methods.registry import all_methods, get_method, register
    from fedkin.reports.advice_write import Advised
    from fedkin.reports.advising import advise
    from fedkin.reports.comparing import Comparison, Report, compare, report
    from fedkin.runs.progress import Progress
    from fedkin.runs.run import Run
    from fedkin.runs.settings import Settings
    from fedkin.runs.stored import open_run
    from fedkin.runs.trackers import Tracker
    from fedkin.runs.train import train

# importing torch takes seconds, and so does what draws: each only when it is used
_HOMES = {
    "core.faults": ("Faults",),
    "core.federation": ("Federation",),
    "core.problem": ("Problem",),
    "data": ("ClientData", "DataConfig", "from_arrays", "load"),
    "methods": ("Method", "State"),
    "methods.registry": ("all_methods", "get_method", "register"),
    "reports.advice_write": ("Advised",),
    "reports.advising": ("advise",),
    "reports.comparing": ("Comparison", "Report", "compare", "report"),
    "runs.progress": ("Progress",),
    "runs.run": ("Run",),
    "runs.settings": ("Settings",),
    "runs.stored": ("open_run",),
    "runs.trackers": ("Tracker",),
    "runs.train": ("train",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = ("core", "data", "engines", "methods", "models", "reports", "runs")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"fedkin.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fedkin' has no attribute '{name}'")
    found = getattr(import_module(f"fedkin.{_HOME[name]}"), name)
    globals()[name] = found  # asked for once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Advised", "ClientData", "Comparison", "DataConfig", "DivergedError", "Faults", "Federation",
    "FedkinError", "Method", "Problem", "Progress", "Report", "Run", "Settings", "State",
    "Tracker", "__version__", "advise", "all_methods", "compare", "from_arrays", "get_method",
    "load", "methods", "open_run", "register", "report", "train",
]  # fmt: skip
