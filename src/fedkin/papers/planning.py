"""What of an item is to be run: panels at a scale, with their data, and how many seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedkin.data.places import roots
from fedkin.errors import FedkinError, unknown
from fedkin.papers.claims import MOST_SEEDS, judge, planned_looks
from fedkin.papers.item import Item, Line, Panel, Scale, slug
from fedkin.papers.outcome import outcome


class MissingDataError(FedkinError):
    """Data that an item needs are not on this machine."""


@dataclass(frozen=True)
class Job:
    """An item as it is to be run: its panels at a scale, how many seeds, and where.

    `looks`: at which numbers of seeds its claims are judged. `parent` holds the runs of all
    items of the paper at this scale. `missing` says which data are not here, so that their
    panels are left out.
    """

    paper: str
    item: Item
    scale: Scale
    panels: tuple[Panel, ...]
    seeds: int
    parent: Path
    missing: tuple[str, ...] = ()
    looks: tuple[int, ...] = ()

    @property
    def folder(self) -> Path:
        return self.parent / slug(self.item.name)

    @property
    def rounds(self) -> int:
        """Rounds of all runs together."""
        return sum(
            int(line.run.get("rounds", panel.rounds)) * self.seeds
            for panel in self.panels
            if not panel.experiment
            for line in panel.lines
        )


def plan(
    paper: str,
    item: Item,
    scale: Scale,
    out: Path,
    seeds: int | None = None,
    rounds: int | None = None,
    only: Iterable[str] = (),
    data_dir: str | None = None,
    stand_in: bool = False,
    device: str | None = None,
) -> Job:
    """What is to be run. `rounds` other than the recipe's are a trial, in a folder of its own.

    With `seeds` so many and one look, otherwise as many as claims need. Panels whose data are
    missing are left out, unless no other is left.
    """
    names = {panel.name: panel for panel in item.panels}
    for name in only:
        if name not in names:
            raise unknown(f"panel of {paper} {item.name}", name, names)
    panels, missing = list[Panel](), list[str]()
    for panel in item.panels:
        here = panel.at(scale)
        if here is None or (only and panel.name not in only):
            continue
        if data_dir is not None:
            here = here.changed(data={"data_dir": data_dir})
        if device is not None and "model" in here.run:
            here = here.changed(model={"device": device})
        if rounds is not None:
            here = here.changed(rounds=rounds)
            here = replace(here, lines=tuple(_without_rounds(line) for line in here.lines))
        try:
            panels.append(with_data(here, stand_in))
        except MissingDataError as error:
            missing.append(str(error))
    if missing and not panels:
        raise MissingDataError(missing[0])
    if not panels:
        raise FedkinError(
            f"{paper} {item.name} is not part of the {scale} scale: add --scale paper"
        )
    trial = f"-{rounds}-rounds" if rounds is not None else ""
    looks = (seeds,) if seeds else planned_looks(item.seeds[scale])
    return Job(
        paper, item, scale, tuple(panels), looks[0], out / paper / (scale + trial),
        tuple(missing), looks,
    )  # fmt: skip


def stages(job: Job, most: int = MOST_SEEDS) -> Iterator[Job]:
    """The job with the seeds of its first look, then the lines that can settle claims with more.

    Every stage is to be run before the next one is asked for. `most`: no more seeds than this,
    though looks are planned beyond it.
    """
    for count in job.looks:
        if count > max(most, job.looks[0]):
            return
        yield replace(job, seeds=count)
        found = outcome(job.paper, job.item, job.scale, job.parent)
        assert found is not None
        judged = [judge(claim, found.values, job.looks) for claim in job.item.claims]
        needed = {line for one in judged if one for line in one.unsettled}
        narrowed = (_needed(panel, needed, job.item.matrix) for panel in job.panels)
        job = replace(job, panels=tuple(panel for panel in narrowed if panel))
        if not job.panels:
            return


def _needed(panel: Panel, lines: set[tuple[str, str]], whole: bool) -> Panel | None:
    """The panel with those lines of it; `whole`, with all of them if there is one."""
    kept = tuple(line for line in panel.lines if (panel.name, line.label) in lines)
    if not kept:
        return None
    # an experiment gives all of its lines at once
    return panel if whole or panel.experiment else replace(panel, lines=kept)


def _without_rounds(line: Line) -> Line:
    return replace(line, run={k: v for k, v in line.run.items() if k != "rounds"})


def with_data(panel: Panel, stand_in: bool) -> Panel:
    """The panel with its data's place filled in; on a stand-in where they are not here."""
    if not panel.fetch:
        return panel
    data: dict[str, Any] = dict(panel.run["data"])
    if "path" in data:
        places = [root / data["path"] for root in roots(data.get("data_dir"))]
        here = next((place for place in places if place.exists()), None)
        if here is not None:
            return panel.changed(data={"path": str(here)})
    else:
        try:
            panel.entries(1)[0].config.make_data()
            return panel
        except FedkinError:
            pass
    if panel.stand_in is None or not stand_in:
        hint = f"; or add --stand-in to run on {panel.stand_in.words}" if panel.stand_in else ""
        raise MissingDataError(f"{panel.title}: {panel.fetch}{hint}")
    return panel.with_stand_in()
