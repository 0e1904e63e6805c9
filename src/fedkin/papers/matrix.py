"""Many lines on many panels as one table, with those marked that may be the best."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from fedkin.papers.outcome import Outcome
from fedkin.reports.statistics import estimate, paired_p
from fedkin.reports.words import NOTHING

LEVEL = 0.05


def matrix_rows(outcome: Outcome) -> list[dict[str, str]]:
    """A row per line, a column per panel: the mean of the item's first measure over seeds."""
    measure = outcome.item.measures[0]
    labels = list(dict.fromkeys(line.label for p in outcome.panels for line in p.lines))
    rows: list[dict[str, str]] = [{"line": label} for label in labels]
    for panel in outcome.panels:
        found = {
            line.label: own
            for line in panel.lines
            if (own := outcome.values.get((panel.name, line.label, measure.name)))
        }
        best = maybe_best(found)
        for row in rows:
            own = found.get(row["line"])
            mean = estimate(list(own.values())) if own else None
            told = NOTHING if own is None else "diverged" if mean is None else ""
            if mean:
                told = f"{mean.mean:{measure.form}}"
                told = f"**{told}**" if row["line"] in best else told
            row[panel.title] = told
    return rows


def maybe_best(lines: Mapping[str, Mapping[int, float]]) -> set[str]:
    """The line of the largest mean, and all that are not certainly below it.

    Paired t-tests over common seeds, with Bonferroni's correction for all pairs of lines. A line
    that diverged with some seed is not among them.
    """
    sound = {k: own for k, own in lines.items() if all(v == v for v in own.values())}
    if not sound:
        return set()
    first = max(sound, key=lambda label: sum(sound[label].values()) / len(sound[label]))
    pairs = max(1, len(list(combinations(sound, 2))))
    found = {first}
    for label, own in sound.items():
        differences = [sound[first][s] - own[s] for s in own if s in sound[first]]
        chance = paired_p(differences)
        certain = (chance is not None and chance * pairs < LEVEL) or (
            # the same difference with every seed, and not zero
            chance is None and len(differences) > 1 and differences[0] > 0
        )
        if not certain:
            found.add(label)
    return found
