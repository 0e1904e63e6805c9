"""The page of all items: `fedkin reproduce --write docs/reproduction.md`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
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


def write_page(page: Path, out: Path) -> list[Outcome]:
    """Write the page and, in a folder of its name beside it, the figures it shows."""
    found = outcomes(out)
    figures = page.with_suffix("")
    shutil.rmtree(figures, ignore_errors=True)
    lines = [
        "# Reproduction", "",
        f"Written by `fedkin reproduce --write {page}`; do not edit. How to repeat an item: "
        "`fedkin reproduce PAPER --figure N` (or `--table N`), with `--scale paper` for the "
        "paper's own sizes; `fedkin reproduce --list` names them all.", "",
        HOW, "", *_summary(found), *_missing(found),
    ]  # fmt: skip
    for one in found:
        lines += [as_text(one, verdicts(one)), *_figures(one, figures)]
    write_text(page, "\n".join(lines))
    return found


def _summary(found: Sequence[Outcome]) -> list[str]:
    rows = []
    for one in found:
        counts = {v: sum(j.verdict is v for j in verdicts(one)) for v in Verdict}
        rows.append({
            "item": f"{one.paper}, {one.item.name}{' (STAND-IN data)' if one.stands_in else ''}",
            "scale": one.scale,
            **{str(verdict): str(count or "") for verdict, count in counts.items()},
            "time": duration(one.seconds),
        })  # fmt: skip
    return [*markdown_table(rows), ""] if rows else []


def _missing(found: Sequence[Outcome]) -> list[str]:
    """Items without any result, and what they need."""
    known = {(one.paper, one.item.name) for one in found}
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
