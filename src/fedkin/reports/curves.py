"""Scores against what they cost, and over clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedkin.methods.registry import goes_alone
from fedkin.reports.drawing import (
    BAD,
    GOOD,
    INK,
    MUTED,
    Drawing,
    canvas,
    legend_below,
    score_axis,
    series_style,
    wrapped,
)
from fedkin.reports.statistics import Score, at_the_end, estimate, evaluations
from fedkin.reports.words import amount, listed, points, seeds, shown
from fedkin.runs.alone import Alone, common_alone, gains, task
from fedkin.runs.groups import Group
from fedkin.runs.measures import ACCURACY
from fedkin.runs.names import cut

COSTS = {"round": "rounds", "megabytes": "MB sent", "seconds": "seconds"}
UNITS = {"megabytes": "MB", "seconds": "s"}
# more dots in a row than this hide each other, and make the page large
MOST_DOTS, MOST_STEPS = 300, 600


def course(group: Group, score: Score, kind: str = "personal") -> pd.DataFrame:
    """The mean over seeds after every evaluated round, its interval, and the mean cost."""
    column = f"{kind}_{score}"
    rows = pd.concat(
        [
            evaluations(run, score).reindex(columns=[*COSTS, column]).assign(seed=run.seed)
            for run in group.runs
        ]
    ).dropna(subset=column)
    found = []
    for number, part in rows.groupby("round"):
        mean = estimate(part[column].tolist())
        if mean is None:  # all of them infinite
            continue
        costs = {name: float(part[name].mean()) for name in COSTS if name != "round"}
        found.append({"round": number, **costs, "mean": mean.mean, "low": mean.low,
                      "high": mean.high, "seeds": mean.count})  # fmt: skip
    return pd.DataFrame(found)


def score_curves(groups: Sequence[Group], score: Score) -> list[Drawing]:
    """Score against rounds, against MB and against seconds, with bands over seeds."""
    courses = {group.label: course(group, score) for group in groups}
    alone = _alone(groups, score)
    numbers = pd.concat([c.assign(method=label) for label, c in courses.items()])
    return [
        _curves(cost, courses, alone, score, numbers)
        for cost in COSTS
        if numbers[cost].notna().any()
    ]


def _alone(groups: Sequence[Group], score: Score) -> pd.DataFrame | None:
    """Going alone, as the baseline of the first group that has it, unless it is a group itself."""
    if any(goes_alone(group.method) for group in groups):
        return None
    found = (course(group, score, "local") for group in groups)
    return next((rows for rows in found if len(rows)), None)


def _curves(
    cost: str,
    courses: dict[str, pd.DataFrame],
    alone: pd.DataFrame | None,
    score: Score,
    numbers: pd.DataFrame,
) -> Drawing:
    figure, axes = canvas(2.9 + 0.13 * len(courses))
    for i, (label, rows) in enumerate(courses.items()):
        style = series_style(i)
        if not rows[cost].any():  # a method that costs nothing is a level
            axes.axhline(rows["mean"].iloc[-1], label=label, **{**style, "linestyle": ":"})
            continue
        axes.plot(rows[cost], rows["mean"], label=label, marker="o", markersize=3, **style)
        if rows["low"].notna().any():
            low, high = rows["low"].astype(float), rows["high"].astype(float)
            if score.share:
                low, high = low.clip(0, 1), high.clip(0, 1)
            axes.fill_between(rows[cost], low, high, color=style["color"], alpha=0.16, linewidth=0)
    if alone is not None and cost == "round":
        axes.plot(alone[cost], alone["mean"], color=MUTED, linestyle=(0, (4, 2)), label="alone")
    score_axis(axes, score)
    axes.set_xlabel(COSTS[cost])
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    legend_below(axes)
    most = int(numbers["seeds"].max())
    words = f"Bands are 95 % intervals over {seeds(most)}." if most > 1 else "One seed: no bands."
    at_end = [
        f"{cut(label)} {shown(rows['mean'].iloc[-1], score)}"
        + ("" if cost == "round" else f" after {amount(rows[cost].iloc[-1], UNITS[cost])}")
        for label, rows in courses.items()
    ]
    words = f"At the end: {listed(at_end)}. {words}"
    title = f"Personal {score.title} against {COSTS[cost]}"
    return Drawing(f"{score}-by-{cost}", title, words, figure, numbers)


def gain_bars(groups: Sequence[Group], score: Score) -> list[Drawing]:
    """For every method: each client's gain over going alone, the worst off first."""
    alone, found = common_alone(groups, score), []
    for i, group in enumerate(groups):
        own = alone.get(task(group))
        parts = [
            gained.rename_axis("client").reset_index().assign(seed=run.seed)
            for run in group.runs
            if (gained := gains(run, score, own)) is not None
        ]
        if parts and own:
            rows = pd.concat(parts).sort_values("gain", kind="stable").reset_index(drop=True)
            found.append(_gains(i, group, rows, score, own))
    return found


def _gains(number: int, group: Group, rows: pd.DataFrame, score: Score, alone: Alone) -> Drawing:
    values = rows["gain"].to_numpy() * (100 if score.share else 1)
    figure, axes = canvas(2.7)
    edges = np.arange(len(values) + 1) - 0.5
    if len(values) <= 120:
        axes.bar(range(len(values)), values, color=np.where(values < 0, BAD, GOOD), width=0.8)
    else:  # thousands of bars as two areas
        seen = values[:: max(1, len(values) // MOST_STEPS)]
        steps = np.linspace(edges[0], edges[-1], len(seen) + 1)
        for part, colour in ((seen.clip(min=0), GOOD), (seen.clip(max=0), BAD)):
            axes.fill_between(steps, np.append(part, part[-1]), step="post", color=colour, lw=0)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.grid(axis="y")
    axes.set_xlim(edges[0], edges[-1])
    unit = (
        f"{score.title}, points"
        if score.share
        else f"{'' if score.higher else 'lower '}{score.title}"
    )
    many = f" of {seeds(len(group.runs))}" if len(group.runs) > 1 else ""
    axes.set(xlabel=f"{len(values)} clients{many}, sorted", ylabel=f"gain ({unit})")
    axes.set_xticks([])
    gain, noise = rows["gain"], rows["noise"]
    words = (
        f"{shown((gain > noise).mean(), ACCURACY, 0)} of clients are better off than alone, "
        f"{shown((gain < -noise).mean(), ACCURACY, 0)} worse off, the others the same within the "
        f"noise of their test data. Alone is {alone.words}. The median gain is "
        f"{points(gain.median(), score)}, the worst {points(gain.min(), score)} and the best "
        f"{points(gain.max(), score)}{' points' if score.share else ''}."
    )
    title = f"{group.label}: gain over going alone"
    return Drawing(f"gain-{number + 1}", title, words, figure, rows)


def distribution(groups: Sequence[Group], score: Score) -> Drawing:
    """Every client's score as a dot, with the middle half and the median, method by method."""
    figure, axes = canvas(0.9 + 0.56 * len(groups))
    parts, medians = [], []
    for i, group in enumerate(groups):
        scores = [at_the_end(run, score) for run in group.runs]
        for run, own in zip(group.runs, scores, strict=True):
            part = {"client": own.index, score.name: own.to_numpy()}
            parts.append(pd.DataFrame({"method": group.label, "seed": run.seed, **part}))
        values = np.sort(np.concatenate(scores))
        low, middle, high = np.percentile(values, (25, 50, 75))
        medians.append(f"{cut(group.label)} {shown(middle, score)}")
        colour = series_style(i)["color"]
        dots = values[:: max(1, len(values) // MOST_DOTS)]
        wobble = 0.22 * np.sin(np.arange(len(dots)) * 2.4)  # spreads dots evenly, always alike
        axes.plot(dots, i + wobble, "o", color=colour, alpha=0.25, markersize=3, markeredgewidth=0)
        axes.plot([low, high], [i, i], color=colour, linewidth=5, solid_capstyle="round")
        axes.plot(middle, i, "o", color=colour, markersize=9, markeredgecolor="white")
        place: Any = {"transform": axes.get_yaxis_transform(), "va": "bottom", "fontsize": 10}
        axes.text(0, i - 0.3, wrapped(group.label, 52), color=INK, **place)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set(xlabel=f"personal {score.title} of each client", ylim=(len(groups) - 0.6, -0.75))
    axes.grid(axis="x")
    if score.share:
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    words = (
        f"Dots are clients, the bar is the middle half of them, the ring the median: "
        f"{listed(medians)}."
    )
    return Drawing(
        "clients", f"Personal {score.title} over clients", words, figure, pd.concat(parts)
    )
