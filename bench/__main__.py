"""python -m bench [WHAT] [--json]: measure ratios on this machine, all in one run."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
from collections.abc import Callable

from bench.counts import counts
from bench.flower import flower
from bench.lockstep import lockstep
from bench.models import models
from bench.perm import perm
from bench.rates import rates, windows
from bench.ray import ray
from bench.state import state
from bench.timing import Row, interleaved, seconds
from bench.workloads import HIDDEN, WORKLOADS, Workload
from fedkin.methods.registry import all_methods
from fedkin.methods.submodel import Submodel


def rounds() -> list[Row]:
    """W1-W4: a FedAvg round against the bare loop."""
    return [
        {"workload": w.name, **interleaved(w.ours(), w.bare(), 7), "target": w.target}
        for w in WORKLOADS
    ]


def scale() -> list[Row]:
    """A round's cost from 1,000 to 100,000 clients, and the memory it takes."""
    rows = []
    for clients in (1_000, 10_000, 100_000):
        work = Workload("scale", WORKLOADS[3].module, (60,), clients, 10, 5, 0.0)
        round_ = work.ours()
        round_()
        median = statistics.median(seconds(round_) for _ in range(5))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append({"clients": clients, "us_per_client": 1e6 * median / clients, "peak_gb": peak})
    return rows


def per_method() -> list[Row]:
    """Each method's round on W1 against FedAvg's, per gradient (sub-models: on an MLP)."""
    rows = []
    for name, cls in all_methods().items():
        # a sub-model is a part of the hidden layers, and W1 has none
        work = HIDDEN if issubclass(cls, Submodel) else WORKLOADS[0]
        options = {"lr": 0.01, "local_steps": work.steps} if hasattr(cls, "local_steps") else {}
        ours, fedavg = work.ours(method=cls(**options)), work.ours()
        measured = interleaved(ours, fedavg, 7)
        more_work = ours.gradients_per_round() / fedavg.gradients_per_round()
        per_gradient = measured["ratio"] / more_work
        rows.append({"method": name, "ratio": measured["ratio"], "per_gradient": per_gradient})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    measures: dict[str, Callable[[], list[Row]]] = {
        "rounds": rounds,
        "scale": scale,
        "methods": per_method,
        "models": models,
        "lockstep": lockstep,
        "state": state,
        "perm": perm,
        "rates": rates,
        "windows": windows,
        "flower": flower,
        "ray": ray,
        "counts": counts,
    }
    listed = "; ".join(f"{name}: {(do.__doc__ or '').strip()}" for name, do in measures.items())
    parser.add_argument("what", nargs="?", default="rounds", choices=tuple(measures), help=listed)
    parser.add_argument("--json", action="store_true", help="print json instead of a table")
    options = parser.parse_args()
    found = measures[options.what]()
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print("  ".join(f"{name:>14}" for name in found[0]))
    for row in found:
        cells = (f"{v:14.3f}" if isinstance(v, float) else f"{v!s:>14}" for v in row.values())
        print("  ".join(cells))


if __name__ == "__main__":
    main()
