"""Advice in pictures, with sites' names on them."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import PowerNorm

from fedkin.errors import visible
from fedkin.reports.advice_words import WAYS, difference, unit, value
from fedkin.reports.drawing import (
    BAD,
    FADING,
    GOOD,
    MUTED,
    SERIES,
    STYLE,
    Drawing,
    canvas,
    wrapped,
)
from fedkin.reports.words import listed
from fedkin.runs.advice_answer import Advice
from fedkin.runs.names import cut

# sites drawn by name; the table and the csv have all
MOST_DRAWN = 40
MOST_NAMED_TWICE = 20  # beyond this names along the lower edge would run into each other
COLOURS = {"gains": GOOD, "loses": BAD, "same": MUTED, "unknown": MUTED}


def drawings(advice: Advice) -> list[Drawing]:
    found = [gains_by_site(advice), ways_compared(advice)]
    kin = who_helps_whom(advice)
    return [*found, *([kin] if kin else [])]


def label(name: str) -> str:
    """A name that fits beside a figure."""
    return cut(visible(name), 26)


def gains_by_site(advice: Advice) -> Drawing:
    """Each site's gain and its interval; where there are many sites, those at both ends."""
    known = [site for site in advice.sites if site.gain is not None]
    known.sort(key=lambda site: site.gain.mean if site.gain else 0.0)
    shown, half = known, MOST_DRAWN // 2
    if len(known) > MOST_DRAWN:
        shown = known[:half] + known[-half:]
    factor = 100 if advice.measure.share else 1
    figure, axes = canvas(1.0 + 0.24 * max(3, len(shown)))
    for i, site in enumerate(shown):
        assert site.gain is not None
        colour = COLOURS[site.verdict]
        if site.gain.low is not None and site.gain.high is not None:
            ends = [factor * site.gain.low, factor * site.gain.high]
            axes.plot(ends, [i, i], color=colour, linewidth=2)
        axes.plot(factor * site.gain.mean, i, "o", color=colour, markersize=6)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.set_yticks(
        range(len(shown)), [label(site.name) for site in shown], fontsize=9, parse_math=False
    )
    axes.set_xlabel(f"gain over alone: {unit(advice.measure)}")
    axes.grid(axis="x")
    many = f" The {half} at each end of {len(known)} are shown." if len(known) > len(shown) else ""
    words = (
        f"Dots are means over {advice.effort.splits} splits, lines 95 % intervals. "
        f"{advice.count('gains')} sites gain and {advice.count('loses')} lose beyond noise.{many}"
    )
    numbers = pd.DataFrame(
        [
            {"site": s.name, "gain": s.gain.mean, "low": s.gain.low, "high": s.gain.high}
            for s in known
            if s.gain
        ]
    )
    return Drawing("gain-by-site", "What each site gains", words, figure, numbers)


def ways_compared(advice: Advice) -> Drawing:
    """The mean metric of every way to train."""
    figure, axes = canvas(0.9 + 0.62 * len(advice.ways))
    factor = 100 if advice.measure.share else 1
    for i, way in enumerate(advice.ways):
        colour = SERIES[0] if way.method == advice.method else MUTED
        middle = factor * (way.gain.mean if way.gain else 0.0)
        if way.gain and way.gain.low is not None and way.gain.high is not None:
            axes.plot([factor * way.gain.low, factor * way.gain.high], [i, i], color=colour, lw=3)
        axes.plot(middle, i, "o", color=colour, markersize=8)
        with matplotlib.rc_context(STYLE):
            axes.text(
                0, i - 0.28, wrapped(WAYS[way.method], 50), fontsize=10, va="bottom",
                transform=axes.get_yaxis_transform(),
            )  # fmt: skip
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set(ylim=(len(advice.ways) - 0.6, -0.75))
    axes.set_xlabel(f"mean gain over alone: {unit(advice.measure)}")
    axes.grid(axis="x")
    parts = [
        f"{WAYS[way.method]} {value(way.value, advice.measure)}"
        + (f" ({difference(way.gain.mean, advice.measure)})" if way.gain else "")
        for way in advice.ways
    ]
    words = f"Mean over sites, on test rows: {listed(parts)}. Lines are 95 % intervals."
    numbers = pd.DataFrame(
        [
            {
                "method": way.method, "value": way.value, "chosen": way.chosen,
                "gain": way.gain.mean if way.gain else 0.0,
                "low": way.gain.low if way.gain else None,
                "high": way.gain.high if way.gain else None,
            }
            for way in advice.ways
        ]
    )  # fmt: skip
    return Drawing("ways", "Ways to train", words, figure, numbers)


def who_helps_whom(advice: Advice) -> Drawing | None:
    """The weights sites give each other, groups side by side."""
    kin = advice.kin
    if kin is None:
        return None
    grouped = [i for members in kin.groups for i in members]
    order = grouped + [i for i in range(len(advice.sites)) if i not in set(grouped)]
    if len(order) > MOST_DRAWN:
        order = order[:MOST_DRAWN]
    weights = kin.weights[np.ix_(order, order)]
    names = [label(advice.sites[i].name) for i in order]
    figure, axes = canvas(min(2.2 + 0.22 * len(order), 8.0))
    norm = PowerNorm(0.5, 0, max(float(weights.max()), 1e-12))
    image = axes.imshow(weights, cmap=FADING, norm=norm, interpolation="none", aspect="auto")
    axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    if len(names) <= MOST_NAMED_TWICE:
        axes.set_xticks(range(len(names)), names, fontsize=8, rotation=90, parse_math=False)
    else:
        axes.set_xticks([])
    axes.set_xlabel("learns from" + ("" if len(names) <= MOST_NAMED_TWICE else " (same order)"))
    with matplotlib.rc_context(STYLE):
        bar = axes.figure.colorbar(image, ax=axes, label="weight", shrink=0.9, pad=0.02)
        bar.outline.set_visible(False)
    many = len(advice.sites) - len(order)
    words = "Rows are sites, columns whom they learn from: the weights that PERM finds, means over "
    words += f"splits.{f' {many} more sites are in kin.csv.' if many > 0 else ''}"
    numbers = pd.DataFrame(kin.weights, columns=[site.name for site in advice.sites])
    numbers.insert(0, "site", [site.name for site in advice.sites], allow_duplicates=True)
    return Drawing("kin", "Who helps whom", words, figure, numbers)
