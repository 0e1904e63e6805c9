"""Pictures of runs that notebooks show by themselves."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # not pyplot, which has global state
from torch import Tensor

from fedkin.errors import visible
from fedkin.runs.measures import Measure
from fedkin.runs.names import cut

MOST_NAMES = 40  # that fit on an axis


class Picture(Figure):
    """A matplotlib figure that a notebook shows by itself; `savefig` writes it to a file."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=110)
        return data.getvalue()


def plot_run(
    label: str,
    metrics: pd.DataFrame,
    clients: pd.DataFrame,
    mixing: Tensor | None,
    measure: Measure,
    words: Mapping[str, str],
) -> Picture:
    """Scores over rounds, every client next to going alone and, where known, who helps whom.

    Sparse weights are those of too many clients for a picture.
    `clients` has a row per client: the last evaluation. `words` say what kinds of models are.
    """
    if mixing is not None and mixing.is_sparse:
        mixing = None
    panels = 2 + (mixing is not None)
    figure = Picture(figsize=(4.6 * panels, 3.8), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(1, panels)
    figure.suptitle(cut(visible(label), 100), parse_math=False)
    _draw_rounds(axes[0], metrics, measure, words)
    if len(clients):
        _draw_clients(axes[1], clients, measure)
        if mixing is not None:
            _draw_mixing(axes[2], mixing, list(clients["client"]))
    return figure


def _draw_rounds(axes: Axes, rows: pd.DataFrame, score: Measure, words: Mapping[str, str]) -> None:
    for kind, title in words.items():
        column = f"{kind}_{score}"
        known = rows[["round", column]].dropna() if column in rows else rows.iloc[:0]
        if len(known):
            axes.plot(known["round"], known[column], marker="o", markersize=3, label=title)
    axes.set(xlabel="round", ylabel=f"mean {score.title}", title="Over rounds")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)


def _draw_clients(axes: Axes, last: pd.DataFrame, score: Measure) -> None:
    """Every client as a line from alone to its personal model, the worst first."""
    own = last[f"personal_{score}"].to_numpy(dtype=float)
    alone = last.get(f"local_{score}", pd.Series(dtype=float)).to_numpy(dtype=float)
    order = np.argsort(own, kind="stable")
    places = np.arange(len(order))
    if len(alone) and not np.isnan(alone).all():
        axes.hlines(places, alone[order], own[order], color="0.75", linewidth=1.2)
        axes.plot(alone[order], places, "o", color="0.55", markersize=4, label="alone")
    axes.plot(own[order], places, "o", color="C0", markersize=4, label="personal model")
    names = [cut(visible(str(last["client"].iloc[i]))) for i in order]
    _name_ticks(axes, names, "y")
    axes.set(xlabel=score.title, title="Every client, on its own test data")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(frameon=False, fontsize=9)


def _draw_mixing(axes: Axes, mixing: Tensor, names: Sequence[str]) -> None:
    weights = mixing.numpy(force=True)
    image = axes.imshow(np.sqrt(weights), cmap="Blues", vmin=0, interpolation="nearest")
    axes.set(xlabel="learns from", ylabel="client", title="Who helps whom")
    labels = [cut(visible(str(name))) for name in names]
    _name_ticks(axes, labels, "y")
    _name_ticks(axes, labels, "x")
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.colorbar(image, ax=axes, label="weight (square root)", shrink=0.85)


def _name_ticks(axes: Axes, names: Sequence[str], side: str) -> None:
    size = 8 if len(names) <= 20 else 6
    if len(names) > MOST_NAMES:
        names = []
    places = range(len(names))
    if side == "y":
        axes.set_yticks(places, names, fontsize=size, parse_math=False)
    else:
        axes.set_xticks(places, names, fontsize=size, rotation=90, parse_math=False)
