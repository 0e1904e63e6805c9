"""A recipe: everything needed to repeat a paper's table or figure, and what the paper says of it.

An item (a table or figure) has panels (a table's column, a figure's part), a panel has lines
(methods). All lines of a panel have the same clients, model and rounds. Panels that several
items share are run once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from fedkin.papers.claims import Claim, Values
from fedkin.papers.measures import Measure
from fedkin.reports.drawing import Drawing
from fedkin.runs.comparison import Entry
from fedkin.runs.config import make_config
from fedkin.runs.groups import Records, flattened
from fedkin.runs.options import merge

Scale = Literal["small", "paper"]
SEEDS = {"small": 5, "paper": 5}
# by line's label and measure's name, what one seed gives
Experiment = Callable[..., Mapping[str, Mapping[str, float]]]


def slug(text: str) -> str:
    """A text as a folder's name."""
    return re.sub(r"[^a-z0-9=.]+", "-", text.lower()).strip("-")


@dataclass(frozen=True)
class Line:
    """A method with its numbers, and what was printed for it, by the measure's name.

    `run` holds values of a run's config in which this line differs from its panel. `tune` has an
    option and the values of which one is chosen on validation data before the runs.
    """

    label: str
    method: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    printed: Mapping[str, float] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    tune: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class StandIn:
    """Data to take, when asked, in place of data that are not there; and what they are."""

    data: Mapping[str, Any]
    words: str


@dataclass(frozen=True)
class Panel:
    """Methods on the same clients.

    `run` holds the values of a run's config apart from method, options and seed, at the
    paper's scale; `small` those that are others at small scale (None: left out there), and
    `small_lines` its lines where they are others too.
    `alone`: runs one after the other, so that their seconds can be compared. `fetch` says
    where data come from that are not downloaded by themselves. `experiment`: instead of
    runs, a function of the seed and of the values in `run`.
    """

    name: str
    title: str
    run: Mapping[str, Any]
    lines: tuple[Line, ...]
    small: Mapping[str, Any] | None = field(default_factory=dict)
    small_lines: tuple[Line, ...] | None = None
    alone: bool = False
    fetch: str = ""
    stand_in: StandIn | None = None
    stood_in: bool = False
    experiment: Experiment | None = None

    @property
    def folder(self) -> str:
        return slug(self.name) + ("-stand-in" if self.stood_in else "")

    def at(self, scale: Scale) -> Panel | None:
        """The panel at a scale; None where it has no part in it."""
        if scale == "paper":
            return self
        if self.small is None:
            return None
        lines = self.lines if self.small_lines is None else self.small_lines
        return replace(self, run=merge(dict(self.run), dict(self.small)), lines=lines)

    def scaled_down(self) -> dict[str, Any]:
        """What is other at small scale than in the paper, by name; line options too."""
        found = flattened(dict(self.small or {}))
        for line, small in zip(self.lines, self.small_lines or self.lines, strict=True):
            for values, others in ((line.options, small.options), (line.run, small.run)):
                found |= {k: "fewer" if k == "rounds" else v for k, v in others.items()
                          if values.get(k) != v}  # fmt: skip
        return {key: value for key, value in found.items() if not key.endswith("_every")}

    def with_stand_in(self) -> Panel:
        """The same on other data, and saying so in its title."""
        assert self.stand_in is not None
        title = f"{self.title} [STAND-IN for the paper's data: {self.stand_in.words}]"
        place = {"data_dir": self.run["data"].get("data_dir")}
        run = {**self.run, "data": {**self.stand_in.data, **place}}
        return replace(self, title=title, run=run, stood_in=True)

    def changed(self, **values: Any) -> Panel:
        """With other values in `run`, nested ones merged."""
        return replace(self, run=merge(dict(self.run), values))

    def entries(self, seeds: int) -> list[Entry]:
        """The runs it takes."""
        return [entry for _, entry in self.runs(seeds)]

    def runs(self, seeds: int) -> list[tuple[Line, Entry]]:
        """Every line with each of its runs; none for an experiment."""
        lines = () if self.experiment else self.lines
        return [(line, self._entry(line, seed)) for line in lines for seed in range(seeds)]

    def _entry(self, line: Line, seed: int) -> Entry:
        own = {"method": line.method, "options": dict(line.options), "seed": seed}
        values = merge(merge(dict(self.run), dict(line.run)), own)
        return Entry(f"{self.folder}/{slug(line.label)}", seed, make_config(values, self.title))

    @property
    def rounds(self) -> int:
        return int(self.run["rounds"])


@dataclass(frozen=True)
class Shown:
    """What was run: panels, the finished runs of each line, and what they measure."""

    panels: Sequence[Panel]
    runs: Mapping[tuple[str, str], Sequence[Records]]
    values: Values
    measures: Sequence[Measure]


class Picture(Protocol):
    """A kind of figure."""

    def draw(self, shown: Shown) -> list[Drawing]: ...


@dataclass(frozen=True)
class Item:
    """A table or a figure: what is run, what is measured, what the paper claims of it.

    `chosen` says what the paper leaves open; `readings` where its text can be read in two
    ways, or is mistaken, and which lines are which; `ours` which claims, or which of their
    bounds, are not the paper's. `matrix`: its numbers are shown with a column for every panel,
    and those in bold that may be the best, so that seeds are added to all lines. `together`: its
    panels have models of one shape and few data, and are run in lockstep.
    """

    kind: Literal["table", "figure", "experiment"]
    number: str
    title: str
    panels: tuple[Panel, ...]
    measures: tuple[Measure, ...]
    claims: tuple[Claim, ...]
    pictures: tuple[Picture, ...] = ()
    chosen: str = ""
    readings: str = ""
    ours: str = ""
    seeds: Mapping[str, int] = field(default_factory=lambda: SEEDS)
    matrix: bool = False
    together: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number}"

    def covers(self, kind: str, number: str) -> bool:
        """Whether this is the item of that number; `figure 3-5` is figure 4 too."""
        first, _, last = self.number.partition("-")
        if kind != self.kind:
            return False
        if number.isdigit() and first.isdigit() and last.isdigit():
            return int(first) <= int(number) <= int(last)
        return number == self.number

    def measure(self, name: str) -> Measure:
        return next(measure for measure in self.measures if measure.name == name)
