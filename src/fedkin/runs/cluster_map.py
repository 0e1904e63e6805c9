"""The cluster of every client in every round, as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from fedkin.errors import FedkinError
from fedkin.runs.reading import read_table

MOST_CLUSTERS = 10**6


def read_clusters(run: Path) -> pd.DataFrame:
    """The cluster of every client, from 0, by round; empty when the run's method has none."""
    path = run / "diagnostics" / "cluster.csv"
    table = read_table(path, ("round",), by_round=True, words=())
    values = table.drop(columns="round", errors="ignore").to_numpy(np.float64)
    known = values[~np.isnan(values)]
    if len(table) and (not values.size or not ((known >= -1) & (known < MOST_CLUSTERS)).all()):
        raise FedkinError(f"{path} is damaged: clusters are numbered from 0 to {MOST_CLUSTERS - 1}")
    return table


def draw_cluster_map(run: Path) -> Path | None:
    """Draw a run's diagnostics/cluster.csv into cluster.png: rounds across, clients down.

    White: the client's cluster is not known yet. None when the run's method
    has no clusters.
    """
    source = run / "diagnostics" / "cluster.csv"
    if not source.exists():
        return None
    import matplotlib
    from matplotlib.figure import (
        Figure,
    )  # not pyplot, which has global state and needs a window system
    from matplotlib.ticker import MaxNLocator

    table = read_clusters(run).set_index("round")
    clusters = table.to_numpy().T
    count = max(1, int(clusters.max()) + 1)
    figure = Figure(figsize=(8, min(2 + 0.1 * len(clusters), 12)), layout="constrained")
    axes = figure.subplots()
    colours = matplotlib.colormaps["tab10" if count <= 10 else "turbo"].resampled(max(count, 10))
    colours = colours.with_extremes(under="white")
    edges = (table.index[0] - 0.5, table.index[-1] + 0.5, len(clusters) - 0.5, -0.5)
    image = axes.imshow(
        clusters, cmap=colours, vmin=-0.5, vmax=max(count, 10) - 0.5,
        aspect="auto", interpolation="nearest", extent=edges,
    )  # fmt: skip
    axes.set(xlabel="round", ylabel="client")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(image, ax=axes, label="cluster", ticks=range(count))
    bar.ax.set_ylim(-0.5, count - 0.5)
    target = run / "cluster.png"
    figure.savefig(target, dpi=120)
    return target
