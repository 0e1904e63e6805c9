"""Scores by architecture, where clients bring models of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedkin.reports.drawing import Drawing, canvas, legend_below, score_axis, series_style, wrapped
from fedkin.reports.statistics import Score
from fedkin.reports.words import listed, shown
from fedkin.runs.groups import Group
from fedkin.runs.own_models import TABLE, scores_by_model

NUMBERS = ["parameters", "clients", "score", "alone"]


def models_plot(groups: Sequence[Group], score: Score) -> Drawing | None:
    """Mean personal score of the clients that have each model, and of that model alone."""
    rows = [
        scores_by_model(run.path, score.name).assign(method=group.label)
        for group in groups
        for run in group.runs
        if (run.path / TABLE).is_file()
    ]
    if not rows:
        return None
    means = pd.concat(rows).groupby(["method", "model"], sort=False)[NUMBERS].mean()
    numbers = means.sort_values("parameters", kind="stable").reset_index()
    names = list(dict.fromkeys(numbers["model"]))
    place = {name: number for number, name in enumerate(names)}
    figure, axes = canvas(3.0)
    for number, (label, part) in enumerate(numbers.groupby("method", sort=False)):
        style = series_style(number)["color"]
        x = part["model"].map(place)
        axes.plot(x, part["score"], "o", color=style, label=str(label))
        if part["alone"].notna().any():
            axes.plot(x, part["alone"], "_", color=style, markersize=14, label=f"{label}: alone")
    axes.set_xticks(np.arange(len(names)), [wrapped(name, 12) for name in names])
    axes.margins(x=0.15)
    score_axis(axes, score)
    legend_below(axes)
    parts = [f"{r['method']} with {r['model']}: {shown(r['score'], score)}"
             for r in numbers.to_dict("records")]  # fmt: skip
    words = f"Means over the clients that have each model, the smallest first: {listed(parts)}."
    return Drawing("models", f"Personal {score.title} by model", words, figure, numbers)
