"""The page of all items: `fedkin reproduce --write docs/reproduction.md`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedkin.papers.claims import Verdict
from fedkin.papers.index import PAPERS
from fedkin.papers.item import Item, Scale, slug
from fedkin.papers.outcome import Outcome, outcome
from fedkin.papers.presentation import (
    FIGURES,
    HOW,
    as_text,
    duration,
    markdown_table,
    verdicts,
)
from fedkin.results.report.words import NOTHING
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


@dataclass(frozen=True)
class Section:
    """An item at a scale as the page tells it: its row of the summary, its text with figures."""

    row: Mapping[str, str]
    text: str


# paper, item's name, scale
Key = tuple[str, str, str]


def write_page(page: Path, out: Path) -> list[Outcome]:
    """Write the page and, in a folder of its name beside it, the figures it shows.

    What an older page tells of items that have no runs below `out` is kept as it stands.
    """
    found, figures = outcomes(out), page.with_suffix("")
    sections = read_sections(page) | {
        (one.paper, one.item.name, one.scale): _section(one, figures) for one in found
    }
    keys: list[Key] = [(paper, item.name, scale) for paper, items in PAPERS.items()
                       for item in items for scale in SCALES]  # fmt: skip
    told = {key: sections[key] for key in keys if key in sections}
    lines = [
        "# Reproduction", "",
        f"Written by `fedkin reproduce --write {page}`; do not edit. How to repeat an item: "
        "`fedkin reproduce PAPER --figure N` (or `--table N`), with `--scale paper` for the "
        "paper's own sizes; `fedkin reproduce --list` names them all.", "",
        HOW, "", *markdown_table([section.row for section in told.values()] or [{"item": NOTHING}]),
        "", *_missing({(paper, name) for paper, name, _ in told}),
        *(section.text for section in told.values()),
    ]  # fmt: skip
    text = "\n".join(lines)
    for path in figures.glob("*.png"):
        if f"({figures.name}/{path.name})" not in text:
            path.unlink()
    write_text(page, text)
    return found


def _section(one: Outcome, figures: Path) -> Section:
    judged = verdicts(one)
    counts = {v: sum(j.verdict is v for j in judged) for v in Verdict}
    row = {
        "item": f"{one.paper}, {one.item.name}{' (STAND-IN data)' if one.stands_in else ''}",
        "scale": one.scale,
        **{str(verdict): str(count or "") for verdict, count in counts.items()},
        "time": duration(one.seconds),
    }
    return Section(row, "\n".join([as_text(one, judged), *_figures(one, figures)]))


def read_sections(page: Path) -> dict[Key, Section]:
    """What a page that was written before tells of every item."""
    if not page.exists():
        return {}
    head, *parts = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in head.splitlines() if line.startswith("| ")]  # fmt: skip
    rows = [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]
    by_name = {(row["item"].partition(" (")[0], row.get("scale", "")): row for row in rows}
    found: dict[Key, Section] = {}
    for part in parts:
        title = re.match(r"## (\w+), ([^:]+): .*\n\n(\w+) scale", part)
        if title and (row := by_name.get((f"{title[1]}, {title[2]}", title[3]))):
            found[title[1], title[2], title[3]] = Section(row, part.rstrip("\n") + "\n")
    return found


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
