"""Fedkin: one model per client, from data that never leave them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedkin import methods
from fedkin.core.faults import Faults
from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.data import ClientData, DataConfig, from_arrays, load
from fedkin.errors import DivergedError, FedkinError
from fedkin.methods import Method, State
from fedkin.methods.registry import all_methods, get_method, register
from fedkin.runs.progress import Progress
from fedkin.runs.run import Run
from fedkin.runs.settings import Settings
from fedkin.runs.stored import open_run
from fedkin.runs.trackers import Tracker
from fedkin.runs.training import train
from fedkin.version import __version__

if TYPE_CHECKING:
    from fedkin.reports.advice_write import Advised
    from fedkin.reports.advising import advise
    from fedkin.reports.comparing import Comparison, Report, compare, report

# they draw, and importing what draws takes a second: only when they are used
_LATER = {
    "Advised": "fedkin.reports.advice_write",
    "Comparison": "fedkin.reports.comparing",
    "Report": "fedkin.reports.comparing",
    "advise": "fedkin.reports.advising",
    "compare": "fedkin.reports.comparing",
    "report": "fedkin.reports.comparing",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'fedkin' has no attribute '{name}'")


__all__ = [
    "Advised", "ClientData", "Comparison", "DataConfig", "DivergedError", "Faults", "Federation",
    "FedkinError", "Method", "Problem", "Progress", "Report", "Run", "Settings", "State",
    "Tracker", "__version__", "advise", "all_methods", "compare", "from_arrays", "get_method",
    "load", "methods", "open_run", "register", "report", "train",
]  # fmt: skip
