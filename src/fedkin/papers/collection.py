"""The page of all items: `fedkin reproduce --write docs/reproduction.md`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedkin.papers.claims import Verdict
from fedkin.papers.index import PAPERS
from fedkin.papers.item import Item, Panel, Scale, slug
from fedkin.papers.outcome import Outcome, outcome
from fedkin.papers.presentation import (
    FIGURES,
    HOW,
    as_text,
    duration,
    markdown_table,
    verdicts,
)
from fedkin.reports.words import NOTHING
from fedkin.tensors import write_text

SCALES: tuple[Scale, ...] = ("small", "paper")
# figures shown for each item; all of them lie beside the runs
MOST_FIGURES = 2


def outcomes(out: Path) -> list[Outcome]:
    """All that is known from runs below a folder, in the papers' order."""
    found = (
        outcome(paper, item, scale, out / paper / scale)
        for paper, items in PAPERS.items()
        for item in items
        for scale in SCALES
    )
    return [one for one in found if one]


# paper, item's name, scale
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Section:
    """Panels of an item at a scale as the page tells of them: a row of the summary, a text."""

    key: Key
    row: Mapping[str, str]
    text: str

    def tells_of(self, panel: Panel) -> bool:
        """Whether it is not among those that were not run."""
        left_out = re.search(r"^Not run here: .*", self.text, flags=re.MULTILINE)
        return left_out is None or panel.title not in left_out[0]


def write_page(page: Path, out: Path) -> list[Outcome]:
    """Write the page and, in a folder of its name beside it, the figures it shows.

    What an older page tells of panels that have no runs below `out` is kept as it stands.
    """
    found, figures = outcomes(out), page.with_suffix("")
    fresh = {_key(one): one for one in found}
    order: list[Key] = [(paper, item.name, scale) for paper, items in PAPERS.items()
                        for item in items for scale in SCALES]  # fmt: skip
    told = [old for old in read_sections(page) if old.key in order and not (
        old.key in fresh and _told_again(old, fresh[old.key]))]  # fmt: skip
    told += [_section(one, figures) for one in found]
    told.sort(key=lambda section: order.index(section.key))
    lines = [
        "# Reproduction", "",
        f"Written by `fedkin reproduce --write {page}`; do not edit. How to repeat an item: "
        "`fedkin reproduce PAPER --figure N` (or `--table N`), with `--scale paper` for the "
        "paper's own sizes; `fedkin reproduce --list` names them all. What was not run again when "
        "the page was last written stands as it was, with the settings it had.", "",
        HOW, "", *markdown_table([section.row for section in told] or [{"item": NOTHING}]),
        "", *_in_all([section.row for section in told]),
        *_missing({section.key[:2] for section in told}),
        *(section.text for section in told),
    ]  # fmt: skip
    text = "\n".join(lines)
    for path in figures.glob("*.png"):
        if f"({figures.name}/{path.name})" not in text:
            path.unlink()
    write_text(page, text)
    return found


def _key(one: Outcome) -> Key:
    return one.paper, one.item.name, one.scale


def _told_again(old: Section, one: Outcome) -> bool:
    """Whether an outcome has all panels that an older section tells of."""
    told = [panel for panel in one.item.panels if panel.at(one.scale) and old.tells_of(panel)]
    return {panel.name for panel in told} <= {panel.name for panel in one.panels}


def _section(one: Outcome, figures: Path) -> Section:
    judged = verdicts(one)
    counts = {v: sum(j.verdict is v for j in judged) for v in Verdict}
    row = {
        "item": f"{one.paper}, {one.item.name}{' (STAND-IN data)' if one.stands_in else ''}",
        "scale": one.scale,
        **{str(verdict): str(count or "") for verdict, count in counts.items()},
        "time": duration(one.seconds),
    }
    return Section(_key(one), row, "\n".join([as_text(one, judged), *_figures(one, figures)]))


def read_sections(page: Path) -> list[Section]:
    """What a page that was written before tells; its summary has a row for every section."""
    if not page.exists():
        return []
    head, *parts = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in head.splitlines() if line.startswith("| ")]  # fmt: skip
    found = []
    for row, part in zip(cells[1:], parts, strict=False):
        title = re.match(r"## (\w+), ([^:]+): .*\n\n(\w+) scale", part)
        if title:
            own, text = dict(zip(cells[0], row, strict=True)), part.rstrip("\n") + "\n"
            found.append(Section((title[1], title[2], title[3]), own, text))
    return found


def _in_all(rows: Collection[Mapping[str, str]]) -> list[str]:
    counts = {v: sum(int(row[str(v)] or 0) for row in rows) for v in Verdict}
    told = [f"{verdict}: {count}" for verdict, count in counts.items()]
    return [f"Claims in all, at both scales: {'; '.join(told)}.", ""] if rows else []


def _missing(known: Collection[tuple[str, str]]) -> list[str]:
    """Items without any result, and what they need."""
    lines = [
        f"- {paper}, {item.name}: {_need(item)}"
        for paper, items in PAPERS.items()
        for item in items
        if (paper, item.name) not in known
    ]
    return ["Not run:", "", *lines, ""] if lines else []


def _need(item: Item) -> str:
    return next((panel.fetch for panel in item.panels if panel.fetch), "not yet") + "."


def _figures(one: Outcome, folder: Path) -> list[str]:
    lines = []
    for path in sorted((one.folder / FIGURES).glob("*.png"))[:MOST_FIGURES]:
        folder.mkdir(parents=True, exist_ok=True)
        name = slug(f"{one.paper} {one.item.name} {one.scale} {path.stem}") + ".png"
        shutil.copyfile(path, folder / name)
        lines += [f"![{path.stem}]({folder.name}/{name})", ""]
    return lines
