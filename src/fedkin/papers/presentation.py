"""An outcome as people read it: text, csv files, a page and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from fedkin.papers.claims import Judged, JudgedPart, Verdict, judge
from fedkin.papers.item import Shown
from fedkin.papers.matrix import matrix_rows
from fedkin.papers.outcome import Outcome
from fedkin.papers.tuning import choices
from fedkin.reports import page as html
from fedkin.reports import tables
from fedkin.reports.drawing import Drawing
from fedkin.reports.statistics import Estimate, estimate
from fedkin.reports.words import NOTHING, seeds
from fedkin.tensors import write_text

# comparisons of a claim that are told in its line
MOST_PARTS = 6
TEXT, REPORT, FIGURES = "result.md", "report.html", "figures"
HOW = (
    "± is half of the 95 % interval of the mean over seeds. A claim holds when the intervals of "
    "all its comparisons (or of as many as it says), seed by seed, lie where it says; it does not "
    "hold when one of them (widened for their number) lies elsewhere, or within half a point of "
    "zero where accuracies are said to differ (a tenth where numbers of iterations are, a "
    "hundredth of the way to the optimum where that is), or the line it speaks of diverged with "
    "two seeds or more and is as said with none; otherwise more seeds are needed to tell, or, "
    "where lines are not 5 points above guessing, more rounds. Where seeds are added until a claim "
    "is settled, to the lines that it compares, the numbers at which one looks are fixed "
    "beforehand, and the intervals in brackets are wider: the 5 % are shared evenly by the looks "
    "(98.3 % intervals with looks at 5, 10 and 20 seeds)."
)


def present(outcome: Outcome) -> str:
    """Write everything beside the outcome's measures; gives the text."""
    drawn = drawings(outcome)
    folder = outcome.folder / FIGURES
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for drawing in drawn:
        drawing.save(folder)
    number_table(outcome).to_csv(outcome.folder / "table.csv", index=False)
    judged = verdicts(outcome)
    claim_table(judged).to_csv(outcome.folder / "claims.csv", index=False)
    text = as_text(outcome, judged)
    write_text(outcome.folder / TEXT, text)
    write_text(outcome.folder / REPORT, as_page(outcome, judged, drawn))
    return text


def verdicts(outcome: Outcome) -> list[Judged]:
    """All claims of which at least a part was run."""
    found = (judge(claim, outcome.values, outcome.looks) for claim in outcome.item.claims)
    return [judged for judged in found if judged]


def drawings(outcome: Outcome) -> list[Drawing]:
    item = outcome.item
    shown = Shown(outcome.panels, outcome.runs(), outcome.values, item.measures)
    return [drawing for picture in item.pictures for drawing in picture.draw(shown)]


# tables -----------------------------------------------------------------------------------


def number_table(outcome: Outcome) -> pd.DataFrame:
    """One row per panel, line and measure: what was printed and what we found."""
    rows = []
    for panel in outcome.panels:
        for line in panel.lines:
            for measure in outcome.item.measures:
                own = outcome.values.get((panel.name, line.label, measure.name))
                found = estimate(list(own.values())) if own else None
                about = {"panel": panel.title, "line": line.label, "measure": measure.name}
                if found:
                    rows.append({**about, "paper": line.printed.get(measure.name), **vars(found)})
    return pd.DataFrame(rows)


def claim_table(judged: Iterable[Judged]) -> pd.DataFrame:
    """One row per part of every claim."""
    rows = []
    for found in judged:
        for part in found.parts:
            first, second = part.part.first, part.part.second
            rows.append({
                "claim": found.claim.text, "verdict": str(found.verdict),
                "first": "/".join(first.key), "second": "/".join(second.key) if second else None,
                "kind": "ratio" if part.part.ratio else "difference" if second else "value",
                "claimed_low": part.part.low, "claimed_high": part.part.high,
                **(vars(part.found) if part.found else {}), "part_verdict": str(part.verdict),
            })  # fmt: skip
    return pd.DataFrame(rows)


def result_rows(outcome: Outcome) -> list[dict[str, str]]:
    """The paper's numbers beside ours, one row per line."""
    if outcome.item.matrix:
        return matrix_rows(outcome)
    rows = []
    for panel in outcome.panels:
        for line in panel.lines:
            row = {"line": line.label}
            if len(outcome.panels) > 1:
                row["panel"] = panel.title
            for measure in outcome.item.measures:
                if any(measure.name in other.printed for p in outcome.panels for other in p.lines):
                    printed = line.printed.get(measure.name)
                    row[f"paper: {measure.title}"] = (
                        NOTHING if printed is None else measure.shown(printed)
                    )
                own = outcome.values.get((panel.name, line.label, measure.name))
                row[measure.title] = interval(own, measure.form) if own else NOTHING
            rows.append(row)
    return rows


def interval(own: Mapping[int, float], form: str) -> str:
    """`91.32 ± 0.41`, and how many seeds diverged."""
    found = estimate(list(own.values()))
    lost = sum(value != value for value in own.values())
    if found is None:
        return "diverged"
    half = "" if found.high is None else f" ± {found.high - found.mean:{form}}"
    return f"{found.mean:{form}}{half}" + (f" ({lost} of {len(own)} diverged)" if lost else "")


# words ------------------------------------------------------------------------------------


def facts(outcome: Outcome) -> list[str]:
    """Scale, seeds, rounds, time."""
    counts = sorted({len(own) for own in outcome.values.values()})
    rounds = sorted({panel.rounds for panel in outcome.panels if "rounds" in panel.run})
    found = [f"{outcome.scale} scale", " to ".join(map(str, counts)) + " seeds"]
    if counts == [1]:
        found[1] = seeds(1)
    if rounds:
        ends = dict.fromkeys((rounds[0], rounds[-1]))
        found.append(f"{' to '.join(map(str, ends))} rounds")
    found.append(f"{duration(outcome.seconds)} of one core")
    return found


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def notes(outcome: Outcome) -> list[str]:
    """What a reader must know: stand-ins, open settings, readings, what was left out."""
    item, found = outcome.item, []
    if outcome.stands_in:
        found.append(
            "STAND-IN DATA, not the paper's: " + "; ".join(outcome.stands_in) + ". "
            "Nothing here speaks about the paper's own data."
        )
    found += [text for text in (item.chosen, item.readings, item.ours) if text]
    for panel in outcome.panels:
        if chosen := choices(panel, outcome.folder.parent):
            told = ", ".join(f"{value} ({line})" for line, value in chosen.items())
            found.append(f"Chosen on samples held back ({panel.title}): {told}.")
    if outcome.scale == "small":
        whole = {panel.name: panel for panel in item.panels}
        for panel in outcome.panels:
            if changed := whole[panel.name].scaled_down():
                told = ", ".join(f"{name} {value}" for name, value in changed.items())
                found.append(f"Smaller than in the paper ({panel.title}): {told}.")
    if outcome.left_out:
        names = ", ".join(panel.title for panel in outcome.left_out)
        found.append(f"Not run here: {names}.")
    return found


def summary(judged: Sequence[Judged]) -> str:
    """How many claims hold."""
    counts = [(sum(found.verdict is verdict for found in judged), verdict) for verdict in Verdict]
    told = [f"{verdict} {count}" for count, verdict in counts if count]
    return f"Of {len(judged)} claims: {', '.join(told)}." if judged else "Nothing is claimed."


def verdict_words(judged: Judged) -> str:
    """The verdict, and in a word why it does not hold."""
    why = judged.claim.why if judged.verdict is Verdict.FAILS else None
    return f"{judged.verdict} ({why})" if why else str(judged.verdict)


def claim_words(judged: Judged, outcome: Outcome) -> str:
    """A claim with its numbers."""
    told = f"{judged.claim.text} ({part_list(judged, outcome)})"
    if len(outcome.looks) > 1 and judged.verdict is not Verdict.OPEN:
        told += f" Settled with {seeds(judged.seeds)}."
    return told


def part_list(judged: Judged, outcome: Outcome) -> str:
    """All comparisons of a claim when they are few, else those that are not as said; and how many
    were not run."""
    bad = [part for part in judged.parts if part.verdict is not Verdict.HOLDS]
    told = bad or list(judged.parts)
    many, good = len(judged.parts), len(judged.parts) - len(bad)
    count = f"{good} of {many} comparisons are as said: " if many > 1 else ""
    numbers = "; ".join(part_words(part, outcome) for part in told[:MOST_PARTS])
    more = f"; and {len(told) - MOST_PARTS} more" if len(told) > MOST_PARTS else ""
    lead = "not " if bad and good else ""
    left = len(judged.claim.parts) - sum(part.part in judged.claim.parts for part in judged.parts)
    unrun = f"; {left} more not run" if left else ""
    return f"{count}{lead}{numbers}{more}{unrun}"


def part_words(judged: JudgedPart, outcome: Outcome) -> str:
    part, found = judged.part, judged.found
    terms = [term for term in (part.first, part.second) if term]
    # what two terms have in common need not be told twice
    panels = {term.panel for term in terms}
    names = [term.line for term in terms]
    if len({(term.line, term.panel) for term in terms}) < len(terms):
        names = [f"{term.line}, {outcome.item.measure(term.measure).title}" for term in terms]
    elif len(panels) > 1:
        names = [f"{term.line} in {_title(outcome, term.panel)}" for term in terms]
    what = (" over " if part.ratio else " minus ").join(names)
    if len(panels) == 1 and len(outcome.panels) > 1:
        what += f" in {_title(outcome, part.first.panel)}"
    form = ".3g" if part.ratio else outcome.item.measure(part.first.measure).form
    shown = _shown(found, form, bool(part.second) and not part.ratio)
    lost = f" ({judged.diverged} more diverged)" if found and judged.diverged else ""
    return f"{what}: {shown}{lost}"


def _title(outcome: Outcome, name: str) -> str:
    title = next(panel.title for panel in outcome.panels if panel.name == name)
    return title.partition(" [")[0]


def _shown(found: Estimate | None, form: str, signed: bool) -> str:
    if found is None:
        return "diverged"
    sign = "+" if signed else ""
    if found.low is None:
        return f"{found.mean:{sign}{form}} (one seed)"
    return f"{found.mean:{sign}{form}} [{found.low:{sign}{form}}, {found.high:{sign}{form}}]"


def as_text(outcome: Outcome, judged: Sequence[Judged], level: int = 2) -> str:
    """The outcome as Markdown that reads well as it is."""
    lines = [f"{'#' * level} {outcome.paper}, {outcome.item.name}: {outcome.item.title}", ""]
    lines += [", ".join(facts(outcome)) + ".", ""]
    for note in notes(outcome):
        lines += [note, ""]
    lines += [*markdown_table(result_rows(outcome)), ""]
    for found, words in zip(judged, discussions(judged), strict=True):
        lines.append(f"- **{verdict_words(found)}**: {claim_words(found, outcome)}")
        lines += [f"  - {paragraph}" for paragraph in words]
    return "\n".join(lines) + "\n"


def discussions(judged: Iterable[Judged]) -> list[list[str]]:
    """What is to be said of claims that do not hold, or may not: each paragraph once."""
    told: set[str] = set()
    found = []
    for one in judged:
        words = [] if one.verdict is Verdict.HOLDS else one.claim.discussion.splitlines()
        new = [paragraph for paragraph in words if paragraph not in told]
        told.update(new)
        if words and not new:
            new = ["As said above."]
        elif one.verdict is Verdict.FAILS and not words:
            new = ["Not discussed yet."]
        found.append(new)
    return found


def markdown_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Rows as a Markdown table with aligned columns."""
    names = list(rows[0])
    widths = [max(len(name), *(len(row[name]) for row in rows)) for name in names]

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"

    return [
        line(names),
        "|" + "|".join("-" * (width + 2) for width in widths) + "|",
        *(line(row[name].replace("|", "/") for name in names) for row in rows),
    ]


def as_page(outcome: Outcome, judged: Sequence[Judged], drawn: Sequence[Drawing]) -> str:
    """The outcome as one page."""
    title = f"{outcome.paper}, {outcome.item.name}: {outcome.item.title}"
    sections = [html.box("verdict", [summary(judged)])]
    if told := notes(outcome):
        sections.append(html.box("note", told))
    rows = [{"claim": found.claim.text, "here it": verdict_words(found),
             "mean over seeds [95 % interval]": part_list(found, outcome)}
            for found in judged]  # fmt: skip
    if rows:
        sections.append(html.section("Claims", html.card(tables.as_html(rows, HOW))))
    caption = "; ".join(panel.title for panel in outcome.panels)
    numbers = tables.as_html(result_rows(outcome), caption)
    sections.append(html.section("Numbers", html.card(numbers)))
    if drawn:
        sections.append(html.section("Figures", html.figures(drawn)))
    told = [html.paragraph(" ".join([found.claim.text, *words]))
            for found, words in zip(judged, discussions(judged), strict=True) if words]  # fmt: skip
    if told:
        sections.append(html.section("Discussion", *told))
    made = (
        "Made by fedkin reproduce. All comparisons of all claims: claims.csv; every figure as PNG, "
        f"SVG and csv: {FIGURES}/"
    )
    return html.page(title, facts(outcome), sections, made)
