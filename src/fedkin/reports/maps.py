"""Who helps whom, clusters, capacities and labels: what a method and its data look like inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedkin.reports.drawing import (
    FADING,
    KINDS,
    STYLE,
    Drawing,
    canvas,
    legend_below,
    score_axis,
    series_style,
)
from fedkin.reports.statistics import Score, at_the_end
from fedkin.reports.words import amount, listed, shown
from fedkin.runs.capacity import COSTS, levels_of
from fedkin.runs.cluster_map import read_clusters
from fedkin.runs.groups import Group, Records
from fedkin.runs.measures import ACCURACY, LOSS
from fedkin.runs.who import (
    PAIRS,
    has_mixing,
    like_beside_like,
    read_mixing,
    read_rates,
    read_sharing,
    sharing_summary,
)

# pictures in the page have no more rows or columns than this; their csv has all
MOST_PIXELS = 400
MOST_CLASSES = 12


def mixing_map(number: int, group: Group) -> Drawing | None:
    """How much every client learns from every other, similar clients side by side."""
    run = group.runs[0]
    if not has_mixing(run.path):
        return None
    alpha, names = read_mixing(run.path)
    if alpha.is_sparse:
        return helpers_plot(number, group, alpha)
    weights, labels = alpha.numpy(), _groups_of(run, len(names))
    order = like_beside_like(alpha) if labels is None else np.argsort(labels, kind="stable")
    by = "similar clients side by side" if labels is None else "ordered by planted group"
    ordered = weights[np.ix_(order, order)]
    figure, axes = canvas(4.0)
    picture = shrunk(ordered)
    # square root: without it a client's weight on itself hides all others
    norm = PowerNorm(0.5, 0, max(float(picture.max()), 1e-12))
    image = axes.imshow(picture, cmap=FADING, norm=norm, interpolation="none")
    image.set_extent((-0.5, len(names) - 0.5, len(names) - 0.5, -0.5))
    axes.set(xlabel="learns from", ylabel="client")
    _client_ticks(axes, [names[i] for i in order])
    _bar(axes, image, "weight")
    others = weights.copy()
    np.fill_diagonal(others, 0)
    words = (
        f"Rows are clients, columns whom they learn from, {by}. On average a client gives "
        f"{shown(float(np.diag(weights).mean()), ACCURACY)} of its weight to itself and learns "
        f"from {(others > 1e-6).sum(1).mean():.1f} of {len(names) - 1} others."
    )
    if labels is not None:
        inside = float((weights * (labels[:, None] == labels)).sum(1).mean())
        words += f" {shown(inside, ACCURACY)} of the weight stays inside the planted groups."
    sharing = read_sharing(run.path)
    words += f" {sharing_summary(sharing)}" if sharing else ""
    numbers = pd.DataFrame(ordered, columns=[names[i] for i in order])
    numbers.insert(0, "client", [names[i] for i in order], allow_duplicates=True)
    return Drawing(f"mixing-{number + 1}", f"{group.label}: who helps whom", words, figure, numbers)


def helpers_plot(number: int, group: Group, alpha: Tensor) -> Drawing:
    """Of weights that are too many for a map: how many clients each one learns from."""
    pairs, weights, n = alpha.indices().numpy(), alpha.values().numpy(), alpha.shape[0]
    others = pairs[0] != pairs[1]
    helped = np.bincount(pairs[0][others], minlength=n)
    own = np.bincount(pairs[0][~others], weights[~others], minlength=n)
    # the others use the one model for all
    learning = np.bincount(pairs[0], minlength=n) > 0
    counts = np.bincount(helped[learning])
    figure, axes = canvas(3.0)
    axes.bar(np.arange(len(counts)), counts, color=KINDS[0])
    axes.set(xlabel="others that a client learns from", ylabel="clients")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    mean = float(own[learning].mean()) if learning.any() else 0.0
    words = (
        f"{n} clients are too many for a map of who helps whom: {PAIRS} in the run folder has all "
        f"{len(weights)} weights, and `fedkin who` those of one client. The {int(learning.sum())} "
        f"that have weights of their own keep {shown(mean, ACCURACY)} for themselves on average."
    )
    sharing = read_sharing(group.runs[0].path)
    words += f" {sharing_summary(sharing)}" if sharing else ""
    numbers = pd.DataFrame({"others": np.arange(len(counts)), "clients": counts})
    return Drawing(f"mixing-{number + 1}", f"{group.label}: who helps whom", words, figure, numbers)


def _groups_of(run: Records, clients: int) -> npt.NDArray[Any] | None:
    labels = run.labels
    known = "(group)" in labels and len(labels) == clients
    return labels["(group)"].to_numpy() if known else None


def cluster_map(number: int, group: Group) -> Drawing | None:
    """Every client's cluster in every round."""
    table = read_clusters(group.runs[0].path)
    if table.empty:
        return None
    clusters = table.drop(columns="round").to_numpy(dtype=float).T
    clusters = np.nan_to_num(clusters, nan=-1).astype(int)
    count = int(clusters.max()) + 1
    picture = shrunk(clusters, nearest=True)
    colours = np.array([to_rgba(KINDS[k % len(KINDS)]) for k in range(max(count, 1))] + [(0,) * 4])
    figure, axes = canvas(min(2.2 + 0.04 * len(clusters), 4.2))
    first, last = table["round"].iloc[[0, -1]]
    edges = (first - 0.5, last + 0.5, len(clusters) - 0.5, -0.5)
    axes.imshow(colours[picture], aspect="auto", interpolation="none", extent=edges)
    axes.set(xlabel="round", ylabel="client")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    handles = [Patch(color=KINDS[k % len(KINDS)], label=str(k)) for k in range(min(count, 10))]
    with matplotlib.rc_context(STYLE):
        figure.legend(
            handles=handles, title="cluster", loc="outside lower center",
            ncols=min(len(handles), 6) or 1,
        )  # fmt: skip
    end = np.bincount(clusters[:, -1][clusters[:, -1] >= 0], minlength=count)
    changes = (clusters[:, 1:] != clusters[:, :-1]).any(0)
    settled = int(table["round"].iloc[int(np.flatnonzero(changes)[-1]) + 1]) if changes.any() else 1
    words = (
        f"Clusters of {listed([str(size) for size in end])} clients at the end; the last change "
        f"was in round {settled}. Clients without a cluster yet are left empty."
    )
    title = f"{group.label}: clusters over rounds"
    return Drawing(f"clusters-{number + 1}", title, words, figure, table)


def capacity_plot(groups: Sequence[Group], score: Score) -> Drawing | None:
    """Mean personal score of the clients of every capacity, where devices differ."""
    rows = []
    for group in groups:
        for run in group.runs:
            rates = read_rates(run.path)
            if rates:
                own = at_the_end(run, score).rename("score").to_frame()
                own["rate"] = own.index.map(rates)
                rows.append(own.assign(method=group.label, seed=run.seed))
    if not rows:
        return None
    levels = pd.concat(rows).groupby(["method", "rate"], sort=False)["score"]
    numbers = levels.agg(["mean", "std", "size"]).rename(columns={"size": "clients"}).reset_index()
    numbers = numbers.sort_values(["method", "rate"])
    figure, axes = canvas(3.0)
    places = {group.label: i for i, group in enumerate(groups)}
    for label, part in numbers.groupby("method", sort=False):
        error = part["std"] / np.sqrt(part["clients"])
        style = series_style(places[str(label)])
        axes.errorbar(
            part["rate"], part["mean"], error, marker="o", capsize=3, label=label, **style
        )
    axes.set_xscale("log", base=2)
    axes.set_xlabel("share of every hidden layer a client carries")
    ticks = sorted(numbers["rate"].unique())
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
    axes.minorticks_off()
    score_axis(axes, score)
    legend_below(axes)
    parts = [f"{r['method']} at {r['rate']:g}: {shown(r['mean'], score)}"
             for r in numbers.to_dict("records")]  # fmt: skip
    words = f"Means over clients of each capacity, with standard errors: {listed(parts)}."
    return Drawing("capacity", f"Personal {score.title} by capacity", words, figure, numbers)


def capacity_cost_plot(groups: Sequence[Group], score: Score) -> Drawing | None:
    """The same against what a client of each capacity sends and receives in a round."""
    rows = [
        levels_of(run.path).assign(method=group.label)
        for group in groups
        for run in group.runs
        if (run.path / "rates.csv").is_file()
    ]
    if not rows:
        return None
    table = pd.concat(rows)
    table["megabytes"] = table["bytes_per_round"] / table["clients"] / 1e6
    if score.name not in table:  # costs were kept beside accuracy and loss only
        score = LOSS if table["accuracy"].isna().all() else ACCURACY
    shown_columns = ["megabytes", score.name, *(name for name in COSTS if name in table)]
    numbers = table.groupby(["method", "rate"])[shown_columns].mean().reset_index()
    figure, axes = canvas(3.0)
    places = {group.label: i for i, group in enumerate(groups)}
    for label, part in numbers.groupby("method", sort=False):
        style = series_style(places[str(label)])
        axes.plot(part["megabytes"], part[score.name], marker="o", label=label, **style)
    axes.set_xlabel("MB per client and round")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    score_axis(axes, score)
    legend_below(axes)
    parts = [f"{r['method']} at {r['rate']:g}: {amount(r['megabytes'], 'MB')}"
             for r in numbers.to_dict("records")]  # fmt: skip
    words = f"A client's traffic in a round, by its capacity: {listed(parts)}."
    if "step_seconds" in numbers:
        steps = [
            f"{r['method']} at {r['rate']:g}: {amount(1e3 * r['step_seconds'], 'ms')}, "
            f"{amount(r['step_peak_bytes'] / 1e6, 'MB')}"
            for r in numbers.to_dict("records")
        ]
        words += f" A step of training, its time and its memory: {listed(steps)}."
    title = f"Personal {score.title} by what a client sends"
    return Drawing("capacity-cost", title, words, figure, numbers)


def label_histogram(run: Records) -> Drawing | None:
    """Training samples of every client and class."""
    table = run.labels
    if table.empty:
        return None
    classes = [c for c in table.columns if c not in ("client", "(group)")]
    counts = table[classes].to_numpy(dtype=float)
    words = (
        f"{len(table)} clients with {int(counts.sum(1).min())} to {int(counts.sum(1).max())} "
        f"training samples; on average a client has {(counts > 0).sum(1).mean():.1f} of "
        f"{len(classes)} classes."
    )
    title = "What clients learn from"
    if classes == ["samples"]:
        words = words.partition(";")[0] + "."
    figure, axes = canvas(3.4)
    if len(classes) > MOST_CLASSES:
        image = axes.imshow(shrunk(counts.T), cmap=FADING, aspect="auto", interpolation="none")
        image.set_extent((-0.5, len(table) - 0.5, len(classes) - 0.5, -0.5))
        axes.set(xlabel="client", ylabel="class")
        _bar(axes, image, "training samples")
    else:
        rows = shrunk(counts, axes=(0,))  # neighbours' means, where there are very many
        edges, base = np.linspace(-0.5, len(table) - 0.5, len(rows) + 1), np.zeros(len(rows))
        for c, name in enumerate(classes):
            low, high = (np.append(level, level[-1]) for level in (base, base + rows[:, c]))
            colour = KINDS[c % len(KINDS)]
            axes.fill_between(edges, low, high, step="post", color=colour, label=name)
            base = base + rows[:, c]
        axes.set(xlabel="client", ylabel="training samples", xlim=(edges[0], edges[-1]))
        axes.set_ylim(bottom=0)
        if classes != ["samples"]:
            legend_below(axes, 6)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    return Drawing("labels", title, words, figure, table)


def shrunk(
    values: npt.NDArray[Any], nearest: bool = False, axes: tuple[int, ...] = (0, 1)
) -> npt.NDArray[Any]:
    """A matrix averaged (or thinned) down to what a picture can show."""
    for axis in axes:
        size = values.shape[axis]
        if size > MOST_PIXELS:
            starts = np.linspace(0, size, MOST_PIXELS, endpoint=False).astype(int)
            if nearest:
                values = values.take(starts, axis)
            else:
                counts = np.diff(np.append(starts, size))
                sums = np.add.reduceat(values, starts, axis)
                values = sums / (counts[:, None] if axis == 0 else counts)
    return values


def _client_ticks(axes: Axes, names: Sequence[str]) -> None:
    few = len(names) <= 30 and max(map(len, names)) <= 4
    if few:
        axes.set_xticks(range(len(names)), names, fontsize=7, rotation=90)
        axes.set_yticks(range(len(names)), names, fontsize=7)
    else:
        axes.set_xticks([])
        axes.set_yticks([])


def _bar(axes: Axes, image: Any, label: str) -> None:
    figure = axes.figure
    assert isinstance(figure, Figure)
    with matplotlib.rc_context(STYLE):
        bar = figure.colorbar(image, ax=axes, label=label, shrink=0.9, pad=0.02)
        bar.outline.set_visible(False)
