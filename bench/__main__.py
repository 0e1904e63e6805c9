"""python -m bench [WHAT] [--only ROW] [--json]: measure ratios on this machine, in one run."""

from __future__ import annotations

import argparse
import inspect
import json
import resource
import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from bench.auto import auto
from bench.counts import counts
from bench.files import files
from bench.flower import flower
from bench.lockstep import lockstep
from bench.long import long
from bench.look import look
from bench.maml import maml
from bench.models import MODELS, models
from bench.norms import norms
from bench.perm import perm
from bench.plausible import plausible
from bench.privacy import privacy
from bench.rates import rates, windows
from bench.ray import ray
from bench.regimes import regimes
from bench.start import start
from bench.state import state
from bench.timing import Row, interleaved, seconds
from bench.workloads import HIDDEN, WORKLOADS, Workload, chosen
from fedkin.errors import FedkinError
from fedkin.methods.fedper import FedBN
from fedkin.methods.registry import all_methods, get_method
from fedkin.methods.submodel import Submodel


def rounds(only: str | None = None) -> Iterator[Row]:
    """W1-W4: a FedAvg round against the bare loop."""
    for w in chosen(WORKLOADS, only):
        yield {"workload": w.name, **interleaved(w.ours(), w.bare(), 7), "target": w.target}


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


def per_method(only: str | None = None) -> Iterator[Row]:
    """Each method's round on W1 against FedAvg's, per gradient (on an MLP if it needs one)."""
    for name, cls in all_methods().items():
        if only not in (None, name):
            continue
        # a sub-model is a part of the hidden layers, a head the last of several: W1 has but one
        deep = issubclass(cls, Submodel) or hasattr(cls, "head")
        normed = MODELS[0]  # and it has no norms that could stay at home
        yield against_fedavg(name, normed if cls is FedBN else HIDDEN if deep else WORKLOADS[0])


PERSONAL = ("pfedme", "fedprox", "feddeper", "ditto", "apfl", "scaffold")


def personal(only: str | None = None) -> Iterator[Row]:
    """Personal methods' rounds on W2 against FedAvg's, per gradient."""
    for name in (only,) if only else PERSONAL:
        yield against_fedavg(name, WORKLOADS[1]) | {"target": 1.15}


def against_fedavg(name: str, work: Workload) -> Row:
    """A method's round on a workload against FedAvg's."""
    cls = get_method(name)
    options = {"lr": 0.01, "local_steps": work.steps} if hasattr(cls, "local_steps") else {}
    ours, fedavg = work.ours(method=cls(**options)), work.ours()
    measured = interleaved(ours, fedavg, 7)
    more_work = ours.gradients_per_round() / fedavg.gradients_per_round()
    per_gradient = measured["ratio"] / more_work
    return {"method": name, "ratio": measured["ratio"], "per_gradient": per_gradient}


def secure() -> list[Row]:
    """Bytes and CPU seconds of a secure sum of 0.8 MB by 3, 10 and 30 sites, also with a tenth of
    them lost; then seconds per round of three real sites, plain and secure in turn."""
    from bench.secure import secure as measure  # here: nothing else needs what comes with Flower

    return measure()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    measures: dict[str, Callable[..., Iterable[Row]]] = {
        "rounds": rounds,
        "scale": scale,
        "methods": per_method,
        "personal": personal,
        "maml": maml,
        "models": models,
        "norms": norms,
        "lockstep": lockstep,
        "start": start,
        "state": state,
        "perm": perm,
        "privacy": privacy,
        "rates": rates,
        "windows": windows,
        "regimes": regimes,
        "files": files,
        "flower": flower,
        "plausible": plausible,
        "ray": ray,
        "secure": secure,
        "counts": counts,
        "auto": auto,
        "long": long,
        "look": look,
    }
    listed = "; ".join(f"{name}: {(do.__doc__ or '').strip()}" for name, do in measures.items())
    listed = listed.replace("%", "%%")  # which argparse would fill in
    parser.add_argument("what", nargs="?", default="rounds", choices=tuple(measures), help=listed)
    parser.add_argument("--only", metavar="ROW", help="measure this row alone, by its name")
    parser.add_argument("--json", action="store_true", help="print json instead of a table")
    parser.add_argument("--seeds", type=int, default=10, help="of regimes: how many seeds")
    kept = Path("regimes.jsonl")
    parser.add_argument("--cells", type=Path, default=kept, help="of regimes: what is computed")
    options = parser.parse_args()
    measure = measures[options.what]
    if measure is regimes:
        measure = partial(regimes, seeds=options.seeds, cells=options.cells)
    if options.only and "only" not in inspect.signature(measure).parameters:
        parser.error(f"{options.what} is measured as a whole: leave --only out")
    found = measure(only=options.only) if options.only else measure()
    if options.json:
        print(json.dumps(list(found), indent=1))
        return
    header: list[str] = []
    for row in found:  # each is shown as soon as it is there
        shown = {k: f"{v:.3f}" if isinstance(v, float) else str(v) for k, v in row.items()}
        widths = {name: max(14, len(name), len(text)) for name, text in shown.items()}
        if list(shown) != header:
            header = list(shown)
            print("  ".join(f"{name:>{width}}" for name, width in widths.items()))
        print("  ".join(f"{text:>{widths[k]}}" for k, text in shown.items()), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (FedkinError, ModuleNotFoundError) as error:  # data or an extra that is not here
        raise SystemExit(f"bench: {error}") from None
