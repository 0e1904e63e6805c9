"""All items as pages: `fedkin reproduce --write docs/reproduction`."""

from __future__ import annotations

from pathlib import Path

from fedkin.papers.index import CONCLUSION, OWN, PAPERS, TITLES
from fedkin.papers.item import Scale
from fedkin.papers.outcome import Outcome, outcome
from fedkin.papers.pages import pages
from fedkin.papers.results import Result, read_results, result_of, write_results
from fedkin.tensors import write_text

SCALES: tuple[Scale, ...] = ("small", "paper")


def outcomes(out: Path) -> list[Outcome]:
    """All that is known from runs below a folder, in the papers' order."""
    found = (
        outcome(paper, item, scale, out / paper / scale)
        for paper, items in PAPERS.items()
        for item in items
        for scale in SCALES
    )
    return [one for one in found if one]


def write_pages(folder: Path, out: Path) -> list[Outcome]:
    """Write the summary, a page per paper and, beside them, their results and figures.

    Results from before, of panels that have no runs below `out`, are kept as they are, but for
    claims of which all panels were run again.
    """
    found = outcomes(out)
    fresh = {(one.paper, one.item.name, one.scale): one for one in found}
    order = [(paper, item.name, scale) for paper, items in PAPERS.items()
             for item in items for scale in SCALES]  # fmt: skip
    known = [old for old in read_results(folder) if old.key in order]
    results = [
        _without_claims_told_again(old, fresh[old.key]) if old.key in fresh else old
        for old in known
        if not (old.key in fresh and _is_told_again(old, fresh[old.key]))
    ]
    results += [result_of(one, folder) for one in found]
    results.sort(key=lambda result: order.index(result.key))
    results = [_discussed_anew(result) for result in write_results(folder, results)]
    for name, text in pages(results, PAPERS, TITLES, OWN, CONCLUSION).items():
        write_text(folder / name, text)
    return found


def _is_told_again(old: Result, one: Outcome) -> bool:
    """Whether an outcome has all panels of an older result."""
    return set(old.panels) <= {panel.name for panel in one.panels}


def _without_claims_told_again(old: Result, one: Outcome) -> Result:
    """Without the claims of which an outcome has all panels that the older result has."""
    again = {panel.name for panel in one.panels}
    concerned = {
        claim.text: {term.panel for part in claim.parts for term in part.terms} & set(old.panels)
        for claim in one.item.claims
    }
    claims = [claim for claim in old.claims if not concerned.get(claim.text, again) <= again]
    return old.model_copy(update={"claims": claims})


def _discussed_anew(result: Result) -> Result:
    """With what the recipe says now, and without claims that it no longer makes."""
    item = next(item for item in PAPERS[result.paper] if item.name == result.item)
    said = {claim.text: claim for claim in item.claims}
    claims = [
        claim.model_copy(update={"discussion": own.discussion.splitlines(), "why": own.why})
        for claim in result.claims
        if (own := said.get(claim.text))
    ]
    return result.model_copy(update={"claims": claims})
