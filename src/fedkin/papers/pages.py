"""Results as pages of the documentation: one for each paper, and a summary of one screen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from fedkin.papers.claims import Verdict
from fedkin.papers.counting import (
    by_item,
    claim_of,
    claimed,
    counts_of,
    decisive,
    final,
    rank,
    texts_of,
    unjudged,
)
from fedkin.papers.item import Item
from fedkin.papers.presentation import FIGURES, HOW, markdown_table
from fedkin.papers.results import RESULTS, ClaimResult, Result
from fedkin.papers.which import which_when

# claims that we added begin with these words
OURS = "Not in the paper"
MADE = "<!-- written by `fedkin reproduce --write`; do not edit -->"
COUNTED = (
    "A claim counts once: at the largest scale that was run with the recipes as they are now, else "
    "at the largest of older runs."
)
WHICH = (
    "In how many columns of the tables below a method's mean is the best or not certainly below "
    "it, and how many points it is below the best mean of a column, where it is farthest."
)
NAMES = {Verdict.HOLDS: "holds", Verdict.FAILS: "**does not hold**", Verdict.OPEN: "cannot tell"}


def pages(
    results: Sequence[Result], papers: Mapping[str, Sequence[Item]], titles: Mapping[str, str],
    own: str = "", conclusion: str = "",
) -> dict[str, str]:  # fmt: skip
    """File names and texts; `results` in the papers' order.

    `own`: what is no paper but ours, with its `conclusion`.
    """
    found = {}
    for paper, items in papers.items():
        told = [result for result in results if result.paper == paper]
        title = titles.get(paper, paper)
        short = conclusion if paper == own else ""
        found[f"{paper}.md"] = paper_page(paper, title, told, items, short)
    found["index.md"] = summary_page(results, papers, titles, own)
    return found


# one paper --------------------------------------------------------------------------------


def paper_page(
    paper: str, title: str, results: Sequence[Result], items: Sequence[Item], conclusion: str = ""
) -> str:
    """The conclusion, if there is one, and verdicts; then every item with numbers and figures."""
    lines = [MADE, "", f"# {paper}: {title}", ""]
    if results and conclusion:
        lines += [conclusion, "", *markdown_table(which_when(results)), "", WHICH, ""]
    if results:
        lines += [
            f"{_counted(results, items)} `fedkin reproduce {paper} --list` names all items.",
            "",
        ]
        lines += [*_verdict_table(results), "", *_folded("How a verdict is reached", [HOW])]
    for _, group in groupby(results, lambda result: result.item):
        lines += _item_section(list(group))
    missing = [item for item in items if item.name not in {result.item for result in results}]
    if missing:
        lines += ["## Not run", "", *(f"- {item.name}: {_need(item)}." for item in missing), ""]
    return "\n".join(lines)


def _need(item: Item) -> str:
    """Why an item has no results: data to fetch, or nothing in particular."""
    return next((panel.fetch for panel in item.panels if panel.fetch), "not run yet")


def _counted(results: Sequence[Result], items: Sequence[Item]) -> str:
    counts = counts_of(results)
    told = ", ".join(f"{NAMES[verdict].strip('*')} {counts[verdict]}" for verdict in Verdict)
    more = unjudged(results, items)
    told += f"; {more} more have not been run" if more else ""
    return f"Of {sum(counts.values())} claims: {told}. {COUNTED} {_older(results)}"


def _older(results: Sequence[Result]) -> str:
    """How many verdicts are from runs of earlier recipes."""
    count = sum(not one[0].made for same in by_item(results).values()
                for one in map(decisive, claimed(same).values()))  # fmt: skip
    return (
        f"{count} of them have only runs older than the recipes as they are now."
        if count
        else ("All are from runs of the recipes as they are now.")
    )


def _verdict_table(results: Sequence[Result]) -> list[str]:
    scales = [s for s in ("paper", "small") if any(result.scale == s for result in results)]
    rows = []
    for _, group in groupby(results, lambda result: result.item):
        same = list(group)
        for text in texts_of(same):
            row = {"where": f"[{same[0].item}](#{_place(same)})", "claim": text}
            for scale in scales:
                found = [(r, c) for r in same if r.scale == scale and (c := claim_of(r, text))]
                row[f"{scale} scale"] = _both(found)
            rows.append(row)
    return markdown_table(rows)


def _both(found: Iterable[tuple[Result, ClaimResult]]) -> str:
    """A verdict, or those of several groups of panels."""
    told = (_word(claim) + ("" if result.made else " (older run)") for result, claim in found)
    return ", ".join(dict.fromkeys(told)) or "not run"


def _word(claim: ClaimResult) -> str:
    """The verdict, why it does not hold, and how many seeds settled it."""
    why = f": {claim.why}" if claim.why and claim.verdict is Verdict.FAILS else ""
    settled = claim.seeds and claim.verdict is not Verdict.OPEN
    return NAMES[claim.verdict] + why + (f", {claim.seeds} seeds" if settled else "")


def _item_section(results: Sequence[Result]) -> list[str]:
    """The newest and largest scale in full, the others folded."""
    main = max(results, key=rank)
    first = [result for result in results if result.scale == main.scale]
    others = [result for result in results if result.scale != main.scale]
    lines = [f"## {_heading(main)}", ""]
    for result in first:
        lines += _body(result)
    for result in others:
        title = f"The same at {result.scale} scale ({', '.join(result.facts[1:])})"
        lines += _folded(title, _body(result))
    return lines


def _body(result: Result) -> list[str]:
    kind, _, number = result.item.partition(" ")
    more = " --scale paper" if result.scale == "paper" else ""
    more += " --stand-in" if result.stands_in else ""
    command = f"`fedkin reproduce {result.paper} --{kind} {number}{more}`"
    when = (
        f"run on {result.made}"
        if result.made
        else (
            "**an older run**, of the recipe and methods as they were before their last corrections"
        )
    )
    lines = [f"{command}: {', '.join(result.facts)}; {when}.", ""]
    told = list(result.notes)
    if result.stands_in:
        lines += [f"**{told.pop(0)}**", ""]
    lines += [*markdown_table(result.rows), ""]
    for name in result.figures:
        lines += [f"![{name.removesuffix('.png')}]({FIGURES}/{name})", ""]
    numbers = [f"- {_word(one)}: {one.text} ({one.numbers})" for one in result.claims]
    behind = ["\n".join(numbers)] if numbers else []
    if result.measured:
        behind.append(f"Of every seed: [{result.name}.csv]({RESULTS}/{result.name}.csv)")
    lines += _folded("The numbers behind each verdict", behind)
    lines += _folded("Settings: what the paper leaves open, and what is smaller here", told)
    return lines + _folded("Discussion of what does not hold, or may not", _discussion(result))


def _discussion(result: Result) -> list[str]:
    """What is to be said of each claim; paragraphs that concern several of them once."""
    told: set[str] = set()
    lines = []
    for claim in result.claims:
        if claim.verdict is Verdict.HOLDS:
            continue
        new = [paragraph for paragraph in claim.discussion if paragraph not in told]
        told.update(new)
        if claim.discussion and not new:
            new = ["As said above."]
        elif claim.verdict is Verdict.FAILS and not new:
            new = ["Not discussed yet."]
        if new:
            why = f" *{claim.why}*:" if claim.why and claim.verdict is Verdict.FAILS else ""
            lines += [f"**{claim.text}**{why} {new[0]}", *new[1:]]
    return lines


def _heading(result: Result) -> str:
    stood = " (STAND-IN data)" if result.stands_in else ""
    return f"{result.item[0].upper()}{result.item[1:]}: {result.title}{stood}"


def _place(results: Sequence[Result]) -> str:
    """Where on its page an item's section is: its heading is that of the newest result."""
    return _anchor(_heading(max(results, key=rank)))


def _anchor(heading: str) -> str:
    """The name that GitHub and MyST give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _folded(title: str, paragraphs: Sequence[str]) -> list[str]:
    """Paragraphs behind a title that opens them."""
    if not paragraphs:
        return []
    shown = title.replace("&", "&amp;").replace("<", "&lt;")
    inner = paragraphs if "" in paragraphs else [line for p in paragraphs for line in (p, "")]
    return ["<details>", f"<summary>{shown}</summary>", "", *inner, "</details>", ""]


# the summary ------------------------------------------------------------------------------


def summary_page(
    results: Sequence[Result], papers: Mapping[str, Sequence[Item]], titles: Mapping[str, str],
    ours: str = "",
) -> str:  # fmt: skip
    """What holds, what does not and why, in a sentence each; claims of `ours` do not count."""
    results = [result for result in results if result.paper != ours]
    counts = counts_of(results)
    rows = []
    real = [paper for paper in papers if paper != ours]
    for paper in real:
        own = [result for result in results if result.paper == paper]
        each = counts_of(own)
        good = next((text for text, v in final(own).items() if v is Verdict.HOLDS), "")
        rows.append({
            "paper": f"[{paper}]({paper}.md): {titles.get(paper, paper)}",
            "holds": str(each[Verdict.HOLDS]), "does not": str(each[Verdict.FAILS]),
            "cannot tell": str(each[Verdict.OPEN]), "not run": str(unjudged(own, papers[paper])),
            "what holds, for example": good,
        })  # fmt: skip
    lines = [
        MADE, "", "# Reproduction", "",
        f"{len(real)} papers, {len({r.key[:2] for r in results})} tables and figures, "
        f"{sum(counts.values())} claims, each decided over several seeds. "
        f"{counts[Verdict.HOLDS]} hold, {counts[Verdict.FAILS]} do not, and for "
        f"{counts[Verdict.OPEN]} the seeds do not tell yet. {COUNTED} {_older(results)} "
        "Claims that we added are marked \"Not in the paper\".", "",
        *markdown_table(rows), "", "## What does not hold, and why", "",
        "*print*: the paper contradicts itself, or its setting diverges. *setting*: open in print, "
        "or smaller here; with another setting it would hold. *ours*: a claim or choice of ours.",
        "", *_failures(results), "",
        *([f"Beyond the papers: [{titles[ours]}]({ours}.md).", ""] if ours else []),
        "Repeat an item with `fedkin reproduce PAPER --figure N` (or `--table N`), with `--scale "
        "paper` for the paper's own sizes. `fedkin reproduce --list` names them all.", "",
        "```{toctree}", ":hidden:", "", *papers, "```", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _failures(results: Sequence[Result]) -> list[str]:
    """The papers' claims that do not hold; those with one reason in one line."""
    found: dict[tuple[str, str], list[str]] = {}
    ours = 0
    for same in by_item(results).values():
        for text, (_, claim) in ((t, decisive(c)) for t, c in claimed(same).items()):
            if claim.verdict is not Verdict.FAILS:
                continue
            if text.startswith(OURS):
                ours += 1
                continue
            reason = _sentence(claim.discussion[0]) if claim.discussion else "Not discussed yet."
            reason = f"{claim.why}: {reason}" if claim.why else reason
            where = f"[{same[0].item}]({same[0].paper}.md#{_place(same)})"
            stood = " (on stand-in data)" if same[0].stands_in else ""
            told = f"{where}{stood}: {text}"
            found.setdefault((same[0].paper, reason), []).append(told)
    lines = [f"- **{paper}**, {' / '.join(told)} *{why}*" for (paper, why), told in found.items()]
    if ours:
        lines.append(f"- {ours} more that do not hold are claims we added: see the papers' pages.")
    return lines or ["Nothing."]


def _sentence(text: str) -> str:
    """The first one, the reason in short."""
    return re.split(r"(?<=[\w)%]\.)\s+(?=[A-Z])", text, maxsplit=1)[0]
