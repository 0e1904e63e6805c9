"""What an item gave, as small files that are kept with the documentation.

The pages are made from these files alone, so that items which are not run again stay on them.
Beside a result stand the numbers of every seed, from which its verdicts follow.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedkin.errors import FedkinError
from fedkin.papers.claims import Judged, Verdict, Why
from fedkin.papers.item import Scale, slug
from fedkin.papers.outcome import Outcome, as_csv
from fedkin.papers.presentation import (
    FIGURES,
    facts,
    notes,
    part_list,
    result_rows,
    verdicts,
)
from fedkin.tensors import write_text

# beside the pages: what they are made from, and the figures they show
RESULTS = "results"
# figures kept for each item; all of them lie beside the runs
MOST_FIGURES = 2


class ClaimResult(BaseModel):
    """A claim with its verdict, its numbers in words, and why it may not hold.

    `seeds`: how many settled it; None where their number was fixed.
    """

    model_config = ConfigDict(extra="forbid")
    text: str
    verdict: Verdict
    numbers: str
    discussion: list[str] = []
    why: Why | None = None
    seeds: int | None = None


class Result(BaseModel):
    """Panels of an item at a scale: numbers beside the printed ones, claims, figures.

    `made`: the day it was measured; empty for what was measured before this was written down.
    `looks`: at which numbers of seeds claims were judged. `name`: of its files, which are its own
    and one with the numbers of every seed, `measured` (both empty for what is older than these).
    """

    model_config = ConfigDict(extra="forbid")
    paper: str
    item: str
    title: str
    scale: Scale
    panels: list[str]
    stands_in: bool
    facts: list[str]
    notes: list[str]
    rows: list[dict[str, str]]
    claims: list[ClaimResult]
    figures: list[str]
    made: str = ""
    looks: list[int] = []
    name: str = Field("", exclude=True)
    measured: str = Field("", exclude=True)

    @property
    def key(self) -> tuple[str, str, Scale]:
        return self.paper, self.item, self.scale


def result_of(outcome: Outcome, folder: Path) -> Result:
    """An outcome as it is kept; its figures are copied into a folder."""
    judged = verdicts(outcome)
    return Result(
        paper=outcome.paper, item=outcome.item.name, title=outcome.item.title,
        scale=outcome.scale, panels=[panel.name for panel in outcome.panels],
        stands_in=bool(outcome.stands_in), facts=facts(outcome), notes=notes(outcome),
        rows=result_rows(outcome), claims=_claims(judged, outcome),
        figures=_copied_figures(outcome, folder / FIGURES), made=outcome.made,
        looks=list(outcome.looks), measured=as_csv(outcome.values),
    )  # fmt: skip


def _claims(judged: Sequence[Judged], outcome: Outcome) -> list[ClaimResult]:
    return [
        ClaimResult(
            text=one.claim.text, verdict=one.verdict, numbers=part_list(one, outcome),
            discussion=one.claim.discussion.splitlines(), why=one.claim.why,
            seeds=one.seeds if len(outcome.looks) > 1 else None,
        )
        for one in judged
    ]  # fmt: skip


def _copied_figures(outcome: Outcome, folder: Path) -> list[str]:
    found = []
    for path in sorted((outcome.folder / FIGURES).glob("*.png"))[:MOST_FIGURES]:
        folder.mkdir(parents=True, exist_ok=True)
        name = slug(f"{outcome.paper} {outcome.item.name} {outcome.scale} {path.stem}") + ".png"
        shutil.copyfile(path, folder / name)
        found.append(name)
    return found


def read_results(folder: Path) -> list[Result]:
    """All results that are kept below a folder of pages."""
    found = []
    # by stem, so that NAME comes before NAME-2 and both keep their names when written again
    for path in sorted((folder / RESULTS).glob("*.json"), key=lambda path: path.stem):
        try:
            result = Result.model_validate_json(path.read_text(encoding="utf-8"))
        except (ValidationError, ValueError) as error:
            raise FedkinError(f"{path} is not a result that `fedkin reproduce` wrote") from error
        numbers = path.with_suffix(".csv")
        kept = numbers.read_text(encoding="utf-8") if numbers.exists() else ""
        found.append(result.model_copy(update={"name": path.stem, "measured": kept}))
    return found


def write_results(folder: Path, results: Sequence[Result]) -> list[Result]:
    """Keep these results and no others, a file each, and give them with the names they got."""
    kept = dict[str, Result]()
    for result in results:
        name = first = slug(" ".join(result.key))
        count = 1
        while name in kept:  # other panels of the same item
            count += 1
            name = f"{first}-{count}"
        kept[name] = result.model_copy(update={"name": name})
    for name, result in kept.items():
        path = folder / RESULTS / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result.model_dump(mode="json"), indent=1, ensure_ascii=False)
        write_text(path, text + "\n")
        if result.measured:
            write_text(path.with_suffix(".csv"), result.measured)
    for path in (folder / RESULTS).glob("*"):
        own = kept.get(path.stem)
        if own is None or (path.suffix == ".csv" and not own.measured):
            path.unlink()
    shown = {name for result in results for name in result.figures}
    for path in (folder / FIGURES).glob("*.png"):
        if path.name not in shown:
            path.unlink()
    return list(kept.values())
