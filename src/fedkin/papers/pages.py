"""Results as pages of the documentation: one for each paper, and a summary of one screen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from fedkin.papers.claims import Verdict
from fedkin.papers.item import Item
from fedkin.papers.presentation import FIGURES, HOW, markdown_table
from fedkin.papers.results import ClaimResult, Result

# claims that we added begin with these words
OURS = "Not in the paper"
MADE = "<!-- written by `fedkin reproduce --write`; do not edit -->"
NAMES = {Verdict.HOLDS: "holds", Verdict.FAILS: "**does not hold**", Verdict.OPEN: "cannot tell"}


def pages(
    results: Sequence[Result], papers: Mapping[str, Sequence[Item]], titles: Mapping[str, str]
) -> dict[str, str]:
    """File names and texts; `results` in the papers' order."""
    found = {}
    for paper, items in papers.items():
        own = [result for result in results if result.paper == paper]
        title = titles.get(paper, paper)
        found[f"{paper}.md"] = paper_page(paper, title, own, items)
    found["index.md"] = summary_page(results, papers, titles)
    return found


# one paper --------------------------------------------------------------------------------


def paper_page(paper: str, title: str, results: Sequence[Result], items: Sequence[Item]) -> str:
    """Verdicts first, then every item with its numbers and figures."""
    lines = [MADE, "", f"# {paper}: {title}", ""]
    if results:
        lines += [f"{_counted(results)} `fedkin reproduce {paper} --list` names all items.", ""]
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


def _counted(results: Sequence[Result]) -> str:
    counts = _counts(results)
    told = ", ".join(f"{counts[verdict]} {NAMES[verdict].strip('*')}" for verdict in Verdict)
    return f"Of {sum(counts.values())} claims: {told} (at the largest scale that was run)."


def _verdict_table(results: Sequence[Result]) -> list[str]:
    scales = [s for s in ("paper", "small") if any(result.scale == s for result in results)]
    rows = []
    for _, group in groupby(results, lambda result: result.item):
        same = list(group)
        for text in _texts(same):
            row = {"where": f"[{same[0].item}](#{_anchor(_heading(same[0]))})", "claim": text}
            for scale in scales:
                found = [_claim(r, text) for r in same if r.scale == scale]
                row[f"{scale} scale"] = _both(claim for claim in found if claim)
            rows.append(row)
    return markdown_table(rows)


def _both(claims: Iterable[ClaimResult]) -> str:
    """A verdict, or those of several groups of panels."""
    return ", ".join(dict.fromkeys(NAMES[claim.verdict] for claim in claims)) or "not run"


def _item_section(results: Sequence[Result]) -> list[str]:
    """The largest scale in full, the others folded."""
    main = max(results, key=lambda result: result.scale == "paper")
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
    lines = [f"{command}: {', '.join(result.facts)}.", ""]
    told = list(result.notes)
    if result.stands_in:
        lines += [f"**{told.pop(0)}**", ""]
    lines += [*markdown_table(result.rows), ""]
    for name in result.figures:
        lines += [f"![{name.removesuffix('.png')}]({FIGURES}/{name})", ""]
    numbers = [f"- {NAMES[one.verdict]}: {one.text} ({one.numbers})" for one in result.claims]
    lines += _folded("The numbers behind each verdict", ["\n".join(numbers)] if numbers else [])
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
            lines += [f"**{claim.text}** {new[0]}", *new[1:]]
    return lines


def _heading(result: Result) -> str:
    stood = " (STAND-IN data)" if result.stands_in else ""
    return f"{result.item[0].upper()}{result.item[1:]}: {result.title}{stood}"


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
    results: Sequence[Result], papers: Mapping[str, Sequence[Item]], titles: Mapping[str, str]
) -> str:
    """What holds, what does not and why, in a sentence each."""
    counts = _counts(results)
    rows = []
    for paper in papers:
        own = [result for result in results if result.paper == paper]
        each = _counts(own)
        good = next((text for text, v in _final(own).items() if v is Verdict.HOLDS), "")
        rows.append({
            "paper": f"[{paper}]({paper}.md): {titles.get(paper, paper)}",
            "holds": str(each[Verdict.HOLDS]), "does not": str(each[Verdict.FAILS]),
            "cannot tell": str(each[Verdict.OPEN]), "what holds, for example": good,
        })  # fmt: skip
    lines = [
        MADE, "", "# Reproduction", "",
        f"{len(papers)} papers, {len({r.key[:2] for r in results})} tables and figures, "
        f"{sum(counts.values())} claims, each decided over several seeds. "
        f"{counts[Verdict.HOLDS]} hold, {counts[Verdict.FAILS]} do not, and for "
        f"{counts[Verdict.OPEN]} the seeds do not tell yet. A claim counts once, at the largest "
        "scale that was run. Claims that we added are marked \"Not in the paper\".", "",
        *markdown_table(rows), "", "## What does not hold, and why", "", *_failures(results), "",
        "Repeat an item with `fedkin reproduce PAPER --figure N` (or `--table N`), with `--scale "
        "paper` for the paper's own sizes. `fedkin reproduce --list` names them all.", "",
        "```{toctree}", ":hidden:", "", *papers, "```", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _failures(results: Sequence[Result]) -> list[str]:
    """The papers' claims that do not hold; those with one reason in one line."""
    found: dict[tuple[str, str], list[str]] = {}
    ours = 0
    for _, group in groupby(results, lambda result: result.key[:2]):
        same = list(group)
        for text, verdict in _final(same).items():
            if verdict is not Verdict.FAILS:
                continue
            if text.startswith(OURS):
                ours += 1
                continue
            claims = [claim for result in same if (claim := _claim(result, text))]
            words = [claim.discussion[0] for claim in claims if claim.discussion]
            reason = _sentence(words[0]) if words else "Not discussed yet."
            where = f"[{same[0].item}]({same[0].paper}.md#{_anchor(_heading(same[0]))})"
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


# counting ---------------------------------------------------------------------------------


def _texts(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(claim.text for result in results for claim in result.claims))


def _claim(result: Result, text: str) -> ClaimResult | None:
    return next((claim for claim in result.claims if claim.text == text), None)


def _final(results: Sequence[Result]) -> dict[str, Verdict]:
    """By claim, the verdict at the largest scale; of several groups of panels the worst."""
    found = {}
    order = [Verdict.FAILS, Verdict.OPEN, Verdict.HOLDS]
    for text in _texts(results):
        told = [(result.scale, claim.verdict) for result in results
                if (claim := _claim(result, text))]  # fmt: skip
        scale = max((scale for scale, _ in told), key=lambda scale: scale == "paper")
        found[text] = min((v for s, v in told if s == scale), key=order.index)
    return found


def _counts(results: Sequence[Result]) -> dict[Verdict, int]:
    found = dict.fromkeys(Verdict, 0)
    for _, group in groupby(results, lambda result: result.key[:2]):
        for verdict in _final(list(group)).values():
            found[verdict] += 1
    return found
