"""What an item gave, read from what its runs left behind."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.papers.claims import Values
from fedkin.papers.item import Item, Panel, Scale, slug
from fedkin.runs.groups import Records
from fedkin.runs.tasks import DONE

# beside a panel's runs: the time they took; beside an item's results: what was measured, and how
TOOK, MEASURED, FACTS = "took.json", "measured.csv", "facts.json"


def took(folder: Path) -> float:
    """Processor seconds spent on a panel so far."""
    path = folder / TOOK
    return float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) if path.exists() else 0.0


def read_facts(folder: Path) -> dict[str, Any]:
    """By panel: how many seeds and rounds, whether on a stand-in, at which seeds one looks."""
    path = folder / FACTS
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    # runs of earlier versions: one look, on a day that nobody wrote down
    return {name: {"looks": [about["seeds"]], "made": "", **about} for name, about in found.items()}


def prune(path: Path) -> None:
    """A finished run that was read off needs no checkpoints and no personal models."""
    if not (path / DONE).exists():
        return
    shutil.rmtree(path / "checkpoint", ignore_errors=True)
    for model in (path / "models").glob("*.safetensors"):
        if model.stem != "global":
            model.unlink()


@dataclass(frozen=True)
class Outcome:
    """What an item gave: its panels as they were run, and by panel, line and measure the values.

    `looks`: at which numbers of seeds claims are judged. `made`: the day of the oldest panel.
    """

    paper: str
    item: Item
    scale: Scale
    folder: Path
    panels: tuple[Panel, ...]
    left_out: tuple[Panel, ...]
    values: Values
    seeds: dict[str, int]
    seconds: float
    looks: tuple[int, ...]
    made: str

    @property
    def stands_in(self) -> list[str]:
        """For which panels the data are a stand-in, in words."""
        return [p.title for p in self.panels if p.stood_in]

    def runs(self) -> dict[tuple[str, str], list[Records]]:
        """The finished runs of every panel's lines, where they still are."""
        found: dict[tuple[str, str], list[Records]] = {}
        for panel in self.panels:
            for line, entry in panel.runs(self.seeds[panel.name]):
                path = entry.folder(self.folder.parent)
                if (path / DONE).exists():
                    found.setdefault((panel.name, line.label), []).append(Records(path))
        return found


def outcome(paper: str, item: Item, scale: Scale, parent: Path) -> Outcome | None:
    """What is known of an item from earlier runs below a folder; None when there is nothing."""
    folder = parent / slug(item.name)
    if not (folder / MEASURED).exists():
        return None
    table, facts = pd.read_csv(folder / MEASURED), read_facts(folder)
    panels, left_out = [], []
    for panel in item.panels:
        here = panel.at(scale)
        if here is None or panel.name not in facts:
            left_out.append(panel)
            continue
        about = facts[panel.name]
        if about["rounds"] is not None:
            here = here.changed(rounds=about["rounds"])
        panels.append(here.with_stand_in() if about["stood_in"] else here)
    return Outcome(
        paper, item, scale, folder, tuple(panels), tuple(left_out), values_of(table),
        {panel.name: int(facts[panel.name]["seeds"]) for panel in panels},
        sum(took(parent / panel.folder) for panel in panels),
        # of panels with several plans the one that splits the level most
        max((tuple(facts[panel.name]["looks"]) for panel in panels), key=len),
        min(facts[panel.name]["made"] for panel in panels),
    )  # fmt: skip


def values_of(table: pd.DataFrame) -> Values:
    """A table with a row for every panel, line, seed and measure."""
    values: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in table.itertuples():
        key = (str(row.panel), str(row.line), str(row.measure))
        values.setdefault(key, {})[int(row.seed)] = float(row.value)
    return values


def as_csv(values: Values) -> str:
    """As `values_of` reads it; an empty value where training diverged."""
    rows = [
        {"panel": panel, "line": line, "seed": seed, "measure": measure, "value": value}
        for (panel, line, measure), own in values.items()
        for seed, value in own.items()
    ]
    text: str = pd.DataFrame(rows).to_csv(index=False, float_format="%.10g")
    return text
