"""Going alone, the same for all methods that are compared: what each client gains over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedkin.core.metrics import METRICS
from fedkin.errors import FedkinError
from fedkin.methods.registry import goes_alone, has_sizes
from fedkin.runs.groups import Group, Records
from fedkin.runs.measures import Measure
from fedkin.runs.noise import noise, read_resamples

# where a model alone was judged on validation data
VALIDATION = {"personal": "validation", "local": "local_validation"}


@dataclass(frozen=True)
class Alone:
    """Local-only training with one setting: runs of `local`, or the baselines beside others.

    `words` says which setting that is and how it was chosen.
    """

    runs: tuple[Records, ...]
    kind: str
    words: str

    def twin(self, run: Records) -> Records | None:
        """The run in which the same clients went alone."""
        return next((own for own in self.runs if same_clients(own, run)), None)


def same_clients(a: Records, b: Records) -> bool:
    return a.seed == b.seed and a.data is not None and a.data == b.data


def task(group: Group) -> str:
    """Equal for two groups that are held to the same models alone: of the same sizes."""
    if not has_sizes(group.method):
        return group.problem
    options = group.runs[0].settings.get("options", {})
    return f"{group.problem} {options.get('rates')} {options.get('capacity')}"


def common_alone(groups: Sequence[Group], measure: Measure) -> dict[str, Alone]:
    """For each task the one setting of local-only training that all its methods are held to.

    Of the settings tried it is the best on validation data. Without such data it is the best on
    test data, which flatters going alone and nobody else.
    """
    found: dict[str, Alone] = {}
    for problem in dict.fromkeys(task(group) for group in groups):
        tried: dict[str, tuple[Group, str]] = {}
        for group in groups:
            kind = "personal" if goes_alone(group.method) else "local"
            if task(group) == problem and all(_knows(r, kind, measure) for r in group.runs):
                setting = _setting(group.runs[0])
                if setting not in tried or kind == "personal":
                    tried[setting] = (group, kind)
        if not tried:
            continue
        everywhere = all(
            _knows(run, VALIDATION[kind], measure)
            for group, kind in tried.values()
            for run in group.runs
        )
        merits = {}
        for setting, (group, kind) in tried.items():
            part = VALIDATION[kind] if everywhere else kind
            merits[setting] = np.mean([_last(run, part, measure) for run in group.runs])
        best = max(merits, key=lambda setting: measure.sign * merits[setting])
        where = "validation data" if everywhere else "test data, which favours going alone"
        how = "" if len(tried) == 1 else f", the best of {len(tried)} on {where}"
        group, kind = tried[best]
        found[problem] = Alone(group.runs, kind, f"local training with {best}{how}")
    return found


def gains(run: Records, measure: Measure, alone: Alone | None) -> pd.DataFrame | None:
    """By client: how much better off it is than alone, the noise, its test examples."""
    if alone is None or (goes_alone(run.method) and alone.kind == "local"):
        return None
    twin = alone.twin(run)
    if twin is None or (twin is run and alone.kind == "personal"):
        return None
    own, other = last_clients(run), last_clients(twin)
    table = pd.DataFrame(
        {
            "gain": measure.sign * (own[f"personal_{measure}"] - other[f"{alone.kind}_{measure}"]),
            "noise": _noise(run, twin, alone.kind, measure, own.index),
            "examples": own.get("test_samples", 1.0),
        }
    )
    return table.dropna(subset="gain")


def last_clients(run: Records) -> pd.DataFrame:
    """The last evaluation of every client, by its name."""
    table = run.clients
    if table.empty:
        raise FedkinError(f"{run.path} has no clients.csv, so nothing is known of its clients")
    return table[table["round"] == table["round"].max()].set_index("client")


def _noise(run: Records, twin: Records, kind: str, measure: Measure, names: pd.Index) -> pd.Series:
    """How much of a difference may be noise; 0 where a run did not measure it."""
    first, second = read_resamples(run.path), read_resamples(twin.path)
    if "personal" not in first or kind not in second or measure.name == "loss":
        return pd.Series(0.0, names)
    if first["personal"].shape != second[kind].shape or len(names) != len(first["certain"]):
        return pd.Series(0.0, names)
    metric = METRICS.get(measure.name)  # a user's own is not known here, and not bounded
    bounded = metric is not None and (metric.share or metric.per_class)
    half = noise(first["personal"], second[kind], first["certain"], bounded)
    return pd.Series(half.numpy(), names)


def _setting(run: Records) -> str:
    """What local-only training beside a run was done with."""
    options = run.settings.get("options", {})
    shown = [
        f"{k} {v:g}" if isinstance(v, int | float) else f"{k} {v}"
        for k in ("lr", "local_steps", "local_epochs")
        if (v := options.get(k))
    ]
    return ", ".join(shown) or "its default settings"


def _knows(run: Records, kind: str, measure: Measure) -> bool:
    column = f"{kind}_{measure}"
    return column in run.metrics and bool(run.metrics[column].notna().any())


def _last(run: Records, kind: str, measure: Measure) -> float:
    return float(run.metrics[f"{kind}_{measure}"].dropna().iloc[-1])
