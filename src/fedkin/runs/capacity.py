"""Results and costs by capacity level: accuracy, bytes, FLOPs, time and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from fedkin.core.federation import Federation
from fedkin.core.kernels import make_kernel
from fedkin.core.problem import Problem
from fedkin.core.variants import Variant
from fedkin.errors import FedkinError
from fedkin.methods import Method, State
from fedkin.models.layout import Layout
from fedkin.runs.evaluation import Scores, score
from fedkin.runs.reading import read_table
from fedkin.runs.who import RATES, read_rates

TABLE, PICTURE, UNTRAINED = "capacity.csv", "capacity.png", "untrained.csv"
COSTS = (
    "accuracy_gap", "loss_gap", "parameters", "step_flops", "step_seconds", "step_peak_bytes",
)  # fmt: skip


def write_capacities(
    folder: Path, fed: Federation, method: Method, state: State, test: Scores | None = None,
    alone: Scores | None = None,
) -> None:  # fmt: skip
    """Accuracy and cost of every rate, as a table and as a picture; and what was never trained."""
    scores = accuracy_by_rate(fed, method, state, test, alone)
    costs = cost_by_rate(fed.problem, scores["rate"], local_steps=1)
    costs = costs.drop(columns="bytes").rename(
        columns={"flops": "step_flops", "seconds": "step_seconds", "peak_bytes": "step_peak_bytes"}
    )
    table = scores.merge(costs, on="rate")
    table.to_csv(folder / TABLE, index=False)
    if hasattr(state, "trained"):
        never_trained(fed.problem.layout, state.trained).to_csv(folder / UNTRAINED, index=False)
    draw_accuracy_against_bytes(table, folder / PICTURE)


def never_trained(layout: Layout, trained: Tensor) -> pd.DataFrame:
    """One row per parameter: its entries, and how many of them no client has ever held."""
    never = [int((~slot.view(trained[None])).sum()) for slot in layout.slots]
    names, sizes = zip(*((slot.name, slot.size) for slot in layout.slots), strict=True)
    return pd.DataFrame({"parameter": names, "entries": sizes, "never_trained": never})


def words_on_untrained(folder: Path) -> str:
    """A sentence about entries of a finished run's global model that nobody trained; or nothing."""
    if not (folder / UNTRAINED).is_file():
        return ""
    needs = ("parameter", "entries", "never_trained")
    table = read_table(folder / UNTRAINED, needs, words=("parameter",))
    if table.empty:
        return ""
    share = table["never_trained"].sum() / table["entries"].sum()
    if not share:
        return ""
    return (
        f"{100 * share:.3g} % of the global model's weights were never trained ({UNTRAINED} says "
        "which): no client that took part held them; windows 'per-layer', kind 'random' or a "
        "client of rate 1 reaches all of them in time"
    )


def accuracy_by_rate(
    fed: Federation, method: Method, state: State, test: Scores | None = None,
    alone: Scores | None = None,
) -> pd.DataFrame:  # fmt: skip
    """One row per rate: its clients, their personal models' scores and their traffic.

    Scores are means over clients, each on its own data; a gap is train minus test
    accuracy, or test minus train loss. Bytes are those of all rounds so far, both ways. Where
    rates are redrawn, they include the other sizes these clients have trained.
    `test` are the models' scores on test data, if they are known already; `alone` those of
    models of the same sizes, each trained by its client alone. `channels` is the share of hidden
    channels that a rate's models really have: widths are whole numbers.
    """
    results = method.results(state)
    if "rates" not in results:
        raise FedkinError(f"method '{method.name}' gives all clients the same model: no rates")
    asked = method.personal(fed, state)
    test, train = test or score(fed, asked, "test"), score(fed, asked, "train")
    table = pd.DataFrame(
        {
            "rate": results["rates"][:, 0].tolist(),
            "accuracy": test.accuracy.tolist(),
            "loss": test.loss.tolist(),
            "accuracy_gap": (train.accuracy - test.accuracy).tolist(),
            "loss_gap": (test.loss - train.loss).tolist(),
            "bytes": (fed.accounts.column("bytes_down") + fed.accounts.column("bytes_up")).tolist(),
        }
    )
    if alone is not None:
        table["alone"] = alone.accuracy.tolist()
    found, widths = _levels(table, fed.round), fed.problem.widths
    kept = [sum(widths.kept(rate)) / (sum(widths.sizes) or 1) for rate in found["rate"]]
    return found.assign(channels=kept)


def levels_of(folder: Path) -> pd.DataFrame:
    """A finished run's levels with their costs; without costs for a run over sites."""
    return read_levels(folder) if (folder / TABLE).is_file() else accuracy_by_rate_of(folder)


def read_levels(folder: Path) -> pd.DataFrame:
    """capacity.csv of a run folder."""
    table = read_table(folder / TABLE, ("rate", "clients", "accuracy", "bytes_per_round", *COSTS))
    if table.empty or not (table["clients"] > 0).all() or not (table["rate"] > 0).all():
        raise FedkinError(f"{folder / TABLE} is damaged: it needs rates and clients above zero")
    return table


def mean_levels(runs: Iterable[tuple[str, Path]]) -> pd.DataFrame:
    """Finished runs' levels by the runs' labels, a row per label and rate: means over repeats."""
    tables = [
        read_levels(folder).assign(method=label)
        for label, folder in runs
        if (folder / TABLE).is_file()
    ]
    if not tables:
        return pd.DataFrame()
    return pd.concat(tables).groupby(["method", "rate"], sort=False).mean().reset_index()


def accuracy_by_rate_of(folder: Path) -> pd.DataFrame:
    """The same of a finished run's folder, without the gaps to training scores."""
    rates = read_rates(folder)
    if not rates:
        raise FedkinError(f"{folder} contains no finished run with rates")
    path = folder / "clients.csv"
    needs = ("round", "personal_accuracy", "personal_loss", "bytes_down", "bytes_up")
    clients = read_table(path, needs)
    last = clients[clients["round"] == clients["round"].max()] if len(clients) else clients
    if len(last) != len(rates):
        raise FedkinError(f"{path} is damaged: it needs a row for each client of {RATES}")
    table = pd.DataFrame(
        {
            "rate": list(rates.values()),
            "accuracy": last["personal_accuracy"].to_numpy(),
            "loss": last["personal_loss"].to_numpy(),
            "bytes": (last["bytes_down"] + last["bytes_up"]).to_numpy(),
        }
    )
    return _levels(table, int(last["round"].iloc[0]))


def _levels(table: pd.DataFrame, rounds: int) -> pd.DataFrame:
    """A row per client made a row per rate, the largest first."""
    levels = table.groupby("rate")
    means = levels.mean().drop(columns="bytes")
    found = means.assign(clients=levels.size(), bytes_per_round=levels["bytes"].sum() / rounds)
    return found.sort_index(ascending=False).reset_index()


def cost_by_rate(
    problem: Problem, rates: Iterable[float], local_steps: int = 10, repeats: int = 3
) -> pd.DataFrame:
    """One row per rate: the size of its model, and what a round costs one client, measured.

    Bytes go both ways. FLOPs are counted, seconds are the best of several runs, and the peak
    is that of tensors alive at the same time in training, without the client's data.
    """
    rows = []
    for rate in rates:
        small = problem.variant(Variant(rate))
        work = _round_of_work(small, local_steps)
        with FlopCounterMode(display=False) as counter:
            work()
        seconds = min(_seconds(work) for _ in range(repeats))
        model_bytes = small.size * small.initial.element_size()
        rows.append(
            {
                "rate": rate,
                "parameters": small.size,
                "share": small.size / problem.size,
                "bytes": 2 * model_bytes,
                "flops": counter.get_total_flops(),
                "seconds": seconds,
                "peak_bytes": _peak_bytes(work, small),
            }
        )
    return pd.DataFrame(rows)


def draw_accuracy_against_bytes(table: pd.DataFrame, path: Path) -> None:
    """A picture of `accuracy_by_rate`: accuracy (loss of numbers) against MB per client, round."""
    from matplotlib.figure import Figure  # here: not every run draws

    score = "loss" if table["accuracy"].isna().all() else "accuracy"
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    megabytes = table["bytes_per_round"] / table["clients"] / 1e6
    axes.plot(megabytes, table[score], "o-")
    for x, y, rate in zip(megabytes, table[score], table["rate"], strict=True):
        axes.annotate(f"rate {rate:g}", (x, y), textcoords="offset points", xytext=(5, 5))
    scale = "log" if (megabytes > 0).all() else "linear"  # possibly no client of a rate took part
    axes.set(xscale=scale, xlabel="MB per client and round", ylabel=f"personal {score}")
    axes.margins(0.15)  # room for the labels
    figure.savefig(path, dpi=120)


def _round_of_work(problem: Problem, local_steps: int) -> Callable[[], None]:
    """Local SGD on the first batch of the client with most samples, again and again."""
    kernel, train = make_kernel("autograd", problem.spec), problem.train
    client = int(train.sizes.argmax())
    start, count = int(train.starts[client]), min(problem.batch_size, int(train.sizes[client]))
    x, y = (part[None, start : start + count] for part in (train.x, train.y))

    def work() -> None:
        v = problem.initial
        for _ in range(local_steps):
            v = v - 1e-3 * kernel.grad(v, x, y, None)

    return work


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _peak_bytes(work: Callable[[], None], problem: Problem) -> int:
    if problem.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(problem.device)
        before = torch.cuda.memory_allocated(problem.device)
        work()
        return int(torch.cuda.max_memory_allocated(problem.device) - before)
    peak = PeakBytes()
    with peak:
        work()
    return peak.bytes


class PeakBytes(TorchDispatchMode):
    """Follows how many bytes of tensors made inside are alive at once; `bytes` is the most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if isinstance(t, Tensor)}
        self._alive = {k: kept for k, kept in self._alive.items() if not kept[0].expired()}
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                if storage.data_ptr() not in given:
                    self._alive[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())
        self.bytes = max(self.bytes, sum(size for _, size in self._alive.values()))
        return result
