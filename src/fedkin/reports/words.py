"""Numbers and findings as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from fedkin.reports.statistics import Estimate, Paired, Score, Summary

NOTHING = "—"
SPACE = "\u00a0"  # where a line must not break


def shown(value: float | None, score: Score, digits: int = 1) -> str:
    """An accuracy in percent, a loss as it is."""
    if value is None or value != value:
        return NOTHING
    return f"{100 * value:.{digits}f}{SPACE}%" if score == "accuracy" else f"{value:.4g}"


def points(value: float | None, score: Score) -> str:
    """A difference of accuracies in percentage points, of losses as it is."""
    if value is None or value != value:
        return NOTHING
    text = f"{100 * value:+.1f}" if score == "accuracy" else f"{value:+.3g}"
    return text if float(text) else text.lstrip("+-")


def with_interval(found: Estimate | None, score: Score) -> str:
    """`81.2 % ± 0.7`; the bare mean when there is one seed."""
    if found is None:
        return NOTHING
    if found.high is None:
        return shown(found.mean, score)
    half = found.high - found.mean
    return shown(found.mean, score) + (
        f"{SPACE}±{SPACE}{100 * half:.1f}" if score == "accuracy" else f"{SPACE}±{SPACE}{half:.2g}"
    )


def amount(value: float, unit: str = "") -> str:
    """A cost with three digits; a dash for what never happened."""
    if not isfinite(value):
        return NOTHING
    text = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".strip()


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def chance(p: float | None) -> str:
    if p is None:
        return NOTHING
    return "below 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def verdict(summaries: Sequence[Summary], pairs: Sequence[Paired], score: Score) -> list[str]:
    """What may be concluded, from the best of the summaries (which come best first) down."""
    top = summaries[0]
    what = "mean personal accuracy" if score == "accuracy" else "mean loss of personal models"
    first = f"{top.label}: {what} {with_interval(top.last, score)} over {seeds(top.seeds)}."
    if top.seeds == 1:
        return [
            first,
            "This is one seed: what happened once. Nothing is concluded about methods; "
            "repeat with --seeds 5 or more.",
        ]
    found = [first]
    against = {
        (pair.second if pair.first == top.label else pair.first): pair
        for pair in pairs
        if top.label in (pair.first, pair.second)
    }
    beaten = [name for name, pair in against.items() if pair.certain]
    open_ = [name for name, pair in against.items() if not pair.certain and pair.p is not None]
    untested = [name for name, pair in against.items() if pair.p is None]
    how = f"paired over {seeds(top.seeds)}, at the 5 % level after Holm's correction"
    if beaten:
        found.append(f"It is better than {listed(beaten)} ({how}).")
    if open_:
        found.append(f"It cannot be told from {listed(open_)} with these seeds.")
    if untested:
        found.append(f"Not tested against {listed(untested)}: too few seeds on the same clients.")
    if top.better_than_alone is not None:
        share = shown(top.better_than_alone.mean, "accuracy", 0)
        found.append(f"{share} of its clients are better off than alone.")
    return found
