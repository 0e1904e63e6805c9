"""`fedkin report`: from run folders to one page and a folder of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.errors import FedkinError
from fedkin.reports import page as html
from fedkin.reports import tables
from fedkin.reports.curves import distribution, gain_bars, score_curves
from fedkin.reports.drawing import Drawing
from fedkin.reports.maps import (
    capacity_cost_plot,
    capacity_plot,
    cluster_map,
    label_histogram,
    mixing_map,
)
from fedkin.reports.own_models import models_plot
from fedkin.reports.statistics import (
    Paired,
    Score,
    Summary,
    choose,
    estimate,
    evaluations,
    paired,
    score_of,
    summarise,
)
from fedkin.reports.words import seeds, shown, verdict
from fedkin.runs.alone import common_alone
from fedkin.runs.comparison import PLAN
from fedkin.runs.groups import Group, find_runs, group, shared_settings
from fedkin.runs.privacy_file import guarantee_in_words, read_privacy
from fedkin.runs.reading import read_text
from fedkin.tensors import write_text

CHOSEN = (
    "✓ marks each method's settings with the best validation score; only these are drawn, and "
    "compared with other methods'."
)
NOT_CHOSEN = (
    "There are several settings of a method, but no validation data to choose by: none is "
    "singled out (--validation-fraction 0.2 keeps such data)."
)
TOGETHER = (
    "A comparison computes all runs of a method together: seconds are each run's equal part of "
    "the time, less than a run alone would take."
)
# methods shown with a figure of their own; the table and the csv files have all
MOST_OWN_FIGURES = 6
MOST_COMPARISONS = 15


@dataclass(frozen=True)
class Findings:
    """All that a report says in numbers, the best method first.

    Of a method with several settings `compared` has the ones `chosen` on validation data.
    """

    groups: list[Group]
    compared: list[Group]
    summaries: list[Summary]
    pairs: list[Paired]
    chosen: list[str]
    notes: list[str]
    score: Score
    target: float
    why: str


def findings(paths: Sequence[Path], target: float | None = None) -> Findings:
    """What some runs show."""
    groups, notes = group(find_runs(paths))
    score = score_of(groups)
    means = {s.label: score.sign * s.last.mean for s in summarise(groups, score)}
    groups.sort(key=lambda g: -means[g.label])
    aim, why = usual_target(groups, score) if target is None else (target, "")
    compared, chosen = groups, list[str]()
    if len({g.method for g in groups}) < len(groups):
        try:
            compared = choose(groups, score)
            if len(compared) < len(groups):
                chosen = [g.label for g in compared]
                notes.append(CHOSEN)
        except FedkinError:
            notes.append(NOT_CHOSEN)
    if any((run.path.resolve().parents[1] / PLAN).exists() for g in groups for run in g.runs):
        notes.append(TOGETHER)
    notes += [f"Alone is {alone.words}." for alone in common_alone(groups, score).values()]
    summaries, pairs = summarise(groups, score, aim), list[Paired]()
    for problem in dict.fromkeys(g.problem for g in compared):
        pairs += paired([g for g in compared if g.problem == problem], score)
    return Findings(groups, compared, summaries, pairs, chosen, notes, score, aim, why)


def conclusions(found: Findings) -> list[str]:
    """What may be concluded of each task: of methods' settings only those no test data chose."""
    sentences = []
    for problem in dict.fromkeys(g.problem for g in found.compared):
        same = [g for g in found.compared if g.problem == problem]
        if len({g.method for g in same}) < len(same):
            sentences.append("Several settings of one method, none of them chosen: see the table.")
            continue
        labels = {g.label for g in same}
        pairs = [p for p in found.pairs if {p.first, p.second} <= labels]
        summaries = [s for s in found.summaries if s.label in labels]
        sentences += verdict(summaries, pairs, found.score)
    return sentences


def usual_target(groups: Sequence[Group], score: Score) -> tuple[float, str]:
    """What clients reach alone; where that is not known, what the last of the methods reaches."""
    ends = [evaluations(run, score).iloc[-1] for g in groups for run in g.runs]
    alone = estimate([row.get(f"local_{score}") for row in ends])
    if alone is not None:
        return alone.mean, " (what clients reach alone)"
    return summarise(groups[-1:], score)[0].last.mean, f" (what {groups[-1].label} reaches)"


def write_report(paths: Sequence[Path], out: Path, target: float | None = None) -> Findings:
    """Write `out` (one HTML file) and beside it a folder with every figure as PNG, SVG and csv."""
    found = findings(paths, target)
    drawn = drawings(found)
    folder = out.with_name(f"{out.stem}_figures")
    folder.mkdir(parents=True, exist_ok=True)
    for part in drawn.values():
        for drawing in part:
            drawing.save(folder)
    tables.numbers(found.summaries).to_csv(folder / "table.csv", index=False)
    tables.paired_numbers(found.pairs).to_csv(folder / "comparisons.csv", index=False)
    write_text(out, _document(found, drawn, folder.name))
    return found


def drawings(found: Findings) -> dict[str, list[Drawing]]:
    """Every figure, by the section it belongs to: of chosen settings, where some were."""
    groups, score = found.compared, found.score
    shown_ = groups[:MOST_OWN_FIGURES]
    inside = [mixing_map(i, g) for i, g in enumerate(shown_)]
    inside += [cluster_map(i, g) for i, g in enumerate(shown_)]
    inside += [capacity_plot(groups, score), capacity_cost_plot(groups, score)]
    inside.append(models_plot(groups, score))
    inside.append(label_histogram(groups[0].runs[0]))
    return {
        "curves": score_curves(groups, score),
        "clients": [distribution(groups, score), *gain_bars(shown_, score)],
        "inside": [drawing for drawing in inside if drawing is not None],
    }


def _document(found: Findings, drawn: dict[str, list[Drawing]], folder: str) -> str:
    first, score = found.groups[0].runs[0], found.score
    data = first.settings.get("data", {}).get("name", "data")
    common = shared_settings(found.groups)
    clients = first.clients["client"].nunique()
    methods = ", ".join(dict.fromkeys(g.method for g in found.groups))
    facts = [
        f"data: {data}",
        f"{clients} clients",
        f"{max(run.rounds for g in found.groups for run in g.runs)} rounds",
        seeds(max(len(g.runs) for g in found.groups)),
    ]
    results = tables.result_rows(found.summaries, found.chosen, score)
    sections = [html.box("verdict", conclusions(found))]
    if found.notes:
        sections.append(html.box("note", found.notes))
    curves, clients_, inside = (html.figures(drawn[part]) for part in drawn)
    sections += [
        html.section("Results", html.card(tables.as_html(results, _caption(score)))),
        html.section(f"Personal {score.title} and what it costs", curves, _costs(found)),
        html.section("What it means for each client", clients_, _spread(found)),
    ]
    if found.pairs:
        sections.append(html.section("Is the difference real?", _comparisons(found)))
    private = _privacy(found)
    if private:
        sections.append(html.section("Privacy", *private))
    sections.append(html.section("Inside", inside))
    sections.append(
        html.section(
            "Settings and versions",
            html.settings_list({**common, **first.made_with}),
            *(
                html.card(html.folded(f"{g.label}: config.toml", html.verbatim(_config(g))))
                for g in found.groups
            ),
        )
    )
    made = (
        f"Made by fedkin {first.made_with.get('fedkin', '')} from runs of {methods}. "
        f"Every figure as PNG, SVG and csv: {folder}/"
    )
    return html.page(f"{methods} on {data}", facts, sections, made)


def _config(group_: Group) -> str:
    return read_text(group_.runs[0].path / "config.toml")


def _privacy(found: Findings) -> list[str]:
    """What runs say of their differential privacy: the guarantee, its ground, its limits."""
    parts = []
    for group_ in found.groups:
        told = read_privacy(group_.runs[0].path)
        if told is not None:
            rest = [*_sentences(told, "assumptions"), "Outside the guarantee:",
                    *_sentences(told, "outside")]  # fmt: skip
            parts.append(html.box("note", [f"{group_.label}: {guarantee_in_words(told)}"]))
            text = html.folded("what this rests on", "".join(map(html.paragraph, rest)))
            parts.append(html.card(text))
    return parts


def _sentences(told: dict[str, Any], name: str) -> list[str]:
    given = told.get(name)
    return [str(sentence) for sentence in given] if isinstance(given, list) else []


def _costs(found: Findings) -> str:
    goal = f"{shown(found.target, found.score)} personal {found.score.title}{found.why}"
    caption = (
        f"What it took to reach {goal}: medians over seeds, at the first evaluation there. "
        "A dash: not reached by most seeds."
    )
    return html.card(tables.as_html(tables.cost_rows(found.summaries), caption))


def _spread(found: Findings) -> str:
    caption = (
        "How clients differ at the last round: standard deviation and percentiles over clients, "
        "means over seeds."
    )
    return html.card(tables.as_html(tables.spread_rows(found.summaries, found.score), caption))


def _comparisons(found: Findings) -> str:
    table = tables.as_html(tables.paired_rows(found.pairs, found.score), PAIRED)
    if len(found.pairs) <= MOST_COMPARISONS:
        return html.card(table)
    return html.card(html.folded(f"{len(found.pairs)} comparisons", table))


def _caption(score: Score) -> str:
    unit = "percentage points" if score.share else f"{score.title}, weighted by test examples"
    return (
        "Personal models on their own clients' test data. ± is the 95 % confidence interval of "
        f"the mean over seeds (Student's t). Gains are in {unit}."
    )


PAIRED = (
    "Seed by seed on the same clients: two-sided paired t-test at the last round, corrected by "
    "Holm for the number of comparisons; the intervals are each comparison's own, uncorrected. "
    "The number of seeds is what a claim rests on."
)
