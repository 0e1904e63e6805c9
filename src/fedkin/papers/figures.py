"""The papers' figures with our numbers: curves, sweeps, bars and maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedkin.papers.item import Line, Panel, Shown
from fedkin.reports.drawing import Drawing, canvas, legend_below, series_style
from fedkin.reports.maps import cluster_map, mixing_map
from fedkin.reports.statistics import estimate
from fedkin.reports.words import seeds
from fedkin.runs.groups import Group, Records


@dataclass(frozen=True)
class Curves:
    """For every panel: a column of metrics.csv against rounds, with 95 % bands over seeds.

    `level` names a measure that does not depend on the line, such as what a constant answer
    would give; its mean, times `times`, is drawn across.
    """

    column: str
    title: str
    log: bool = False
    level: str = ""
    times: float = 1.0

    def draw(self, shown: Shown) -> list[Drawing]:
        found = []
        for panel in shown.panels:
            courses = {
                line.label: rows
                for line in panel.lines
                if len(rows := self.course(shown.runs.get((panel.name, line.label), ())))
            }
            if courses:
                found.append(self._picture(panel, courses, shown))
        return found

    def course(self, runs: Sequence[Records]) -> pd.DataFrame:
        """The mean over seeds after every round that has the column, and its interval."""
        tables = [run.metrics[["round", self.column]].dropna() for run in runs
                  if self.column in run.metrics]  # fmt: skip
        if not tables:
            return pd.DataFrame()
        means = {number: estimate(part[self.column].tolist())
                 for number, part in pd.concat(tables).groupby("round")}  # fmt: skip
        return pd.DataFrame(
            [{"round": n, "mean": m.mean, "low": m.low, "high": m.high, "seeds": m.count}
             for n, m in means.items() if m]
        )  # fmt: skip

    def _across(self, panel: Panel, shown: Shown) -> tuple[str, float] | None:
        """The level's words and place."""
        found = [v for line in panel.lines
                 for v in shown.values.get((panel.name, line.label, self.level), {}).values()
                 if v == v]  # fmt: skip
        if not found:
            return None
        title = next(m.title for m in shown.measures if m.name == self.level)
        return title.removesuffix(", %"), self.times * sum(found) / len(found)

    def _picture(self, panel: Panel, courses: Mapping[str, pd.DataFrame], shown: Shown) -> Drawing:
        figure, axes = canvas(2.9 + 0.13 * len(courses))
        for i, (label, rows) in enumerate(courses.items()):
            _band(axes, rows["round"], rows, label, i)
        across = self._across(panel, shown)
        if across:
            axes.axhline(across[1], color="#57606a", linestyle="--", linewidth=1, label=across[0])
        axes.set(xlabel="rounds", ylabel=self.title)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        if self.log:
            axes.set_yscale("log")
        else:
            axes.set_ylim(*_limits([rows["mean"] for rows in courses.values()]))
        axes.grid(axis="y")
        legend_below(axes)
        numbers = pd.concat([rows.assign(line=label) for label, rows in courses.items()])
        words = _bands(numbers.groupby("line")["seeds"].max())
        name = f"{panel.folder}-{self.column}".replace("_", "-")
        return Drawing(name, f"{panel.title}: {self.title}", words, figure, numbers)


@dataclass(frozen=True)
class Against:
    """What lines measure at the end against one of their options; a curve per panel and method.

    A line's `run` may hold the option instead (rounds, fraction).
    """

    option: str
    measure: str
    title: str
    panels: tuple[str, ...] = ()
    log: bool = False

    def draw(self, shown: Shown) -> list[Drawing]:
        measure = next(m for m in shown.measures if m.name == self.measure)
        rows = []
        for panel in shown.panels:
            for line in panel.lines:
                x, own = self._place(line), shown.values.get((panel.name, line.label, self.measure))
                mean = estimate(list(own.values())) if own else None
                if mean and x is not None and panel.name in (self.panels or (panel.name,)):
                    method = line.label.partition(",")[0]
                    rows.append({"panel": panel.title, "method": method, self.option: x,
                                 "mean": mean.mean, "low": mean.low, "high": mean.high,
                                 "seeds": mean.count})  # fmt: skip
        if not rows:
            return []
        numbers = pd.DataFrame(rows)
        figure, axes = canvas(3.2)
        for i, (names, part) in enumerate(numbers.groupby(["panel", "method"], sort=False)):
            part = part.sort_values(self.option)
            _band(axes, part[self.option], part, ", ".join(map(str, names)), i)
        axes.set(xlabel=self.option, ylabel=measure.title)
        if self.log:
            axes.set_xscale("log")
        axes.grid(axis="y")
        legend_below(axes, 1)
        words = _bands(numbers["seeds"])
        name = f"{self.measure}-by-{self.option}-{'-'.join(self.panels)}".strip("-")
        return [Drawing(name.replace("_", "-"), self.title, words, figure, numbers)]

    def _place(self, line: Line) -> float | None:
        value = line.options.get(self.option, line.run.get(self.option))
        return None if value is None else float(value)


@dataclass(frozen=True)
class Bars:
    """For every panel: what its lines measure, as bars."""

    measure: str

    def draw(self, shown: Shown) -> list[Drawing]:
        measure, found = next(m for m in shown.measures if m.name == self.measure), []
        for panel in shown.panels:
            means = {
                line.label: mean
                for line in panel.lines
                if (own := shown.values.get((panel.name, line.label, self.measure)))
                and (mean := estimate(list(own.values())))
            }
            if not means:
                continue
            figure, axes = canvas(1.0 + 0.4 * len(means))
            for i, mean in enumerate(means.values()):
                axes.barh(i, mean.mean, color=series_style(i)["color"], height=0.6)
                if mean.low is not None and mean.high is not None:
                    axes.plot([mean.low, mean.high], [i, i], color="#57606a", linewidth=1.5)
            axes.set_yticks(range(len(means)), list(means))
            axes.set(xlabel=measure.title, ylim=(len(means) - 0.5, -0.5))
            axes.grid(axis="x")
            numbers = pd.DataFrame([{"line": label, **vars(mean)} for label, mean in means.items()])
            words = _bands(numbers["count"]).replace("Bands", "Thin lines")
            name = f"{panel.folder}-{self.measure}".replace("_", "-")
            found.append(Drawing(name, f"{panel.title}: {measure.title}", words, figure, numbers))
        return found


@dataclass(frozen=True)
class Maps:
    """Who learns from whom, or every client's cluster over rounds, of each line's first seed."""

    kind: str

    def draw(self, shown: Shown) -> list[Drawing]:
        make = {"mixing": mixing_map, "cluster": cluster_map}[self.kind]
        found = []
        for panel in shown.panels:
            for i, line in enumerate(panel.lines):
                runs = tuple(shown.runs.get((panel.name, line.label), ()))
                drawing = make(i, Group(line.label, runs[:1])) if runs else None
                if drawing:
                    title = f"{panel.title}: {drawing.title}"
                    name = f"{panel.folder}-{drawing.name}"
                    found.append(replace(drawing, name=name, title=title))
        return found


def _band(axes: Axes, x: pd.Series, rows: pd.DataFrame, label: str, number: int) -> None:
    style = series_style(number)
    axes.plot(x, rows["mean"], label=label, marker="o", markersize=3, **style)
    if rows["low"].notna().any():
        low, high = rows["low"].astype(float), rows["high"].astype(float)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.16, linewidth=0)


def _limits(means: Sequence[pd.Series]) -> tuple[float, float]:
    """So that means fill half of the height, however wide the bands are."""
    low, high = min(float(m.min()) for m in means), max(float(m.max()) for m in means)
    room = (high - low) / 2 or 0.1 * abs(high) or 1.0
    return low - room, high + room


def _bands(counts: pd.Series) -> str:
    """`counts`: the lines' numbers of seeds."""
    few, most = int(counts.min()), int(counts.max())
    if most < 2:
        return "One seed: no bands."
    return f"Bands are 95 % intervals over {'' if few == most else f'{few} to '}{seeds(most)}."
