"""Numbers and findings as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from fedkin.reports.statistics import Estimate, Paired, Score, Summary
from fedkin.runs.measures import ACCURACY

NOTHING = "—"
SPACE = "\u00a0"  # where a line must not break


def shown(value: float | None, score: Score, digits: int = 1) -> str:
    """A share in percent, other scores as they are."""
    if value is None or value != value:
        return NOTHING
    return f"{100 * value:.{digits}f}{SPACE}%" if score.share else f"{value:.4g}"


def points(value: float | None, score: Score) -> str:
    """A difference of shares in percentage points, of other scores as it is."""
    if value is None or value != value:
        return NOTHING
    text = f"{100 * value:+.1f}" if score.share else f"{value:+.3g}"
    return text if float(text) else text.lstrip("+-")


def with_interval(found: Estimate | None, score: Score) -> str:
    """`81.2 % ± 0.7`; the bare mean when there is one seed."""
    if found is None:
        return NOTHING
    if found.high is None:
        return shown(found.mean, score)
    half = found.high - found.mean
    return shown(found.mean, score) + (
        f"{SPACE}±{SPACE}{100 * half:.1f}" if score.share else f"{SPACE}±{SPACE}{half:.2g}"
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
    value = f"{with_interval(top.last, score)} over {seeds(top.seeds)}"
    first = f"{top.label}: mean personal {score.title} {value}."
    if top.seeds == 1:
        return [
            first,
            "This is one seed: what happened once. Nothing is concluded about methods; "
            "repeat with --seeds 5 or more.",
            *([three_shares(top)] if top.better_than_alone else []),
            *not_better_than_trivial(summaries, score),
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
        found.append(three_shares(top))
    return [*found, *not_better_than_trivial(summaries, score)]


def three_shares(s: Summary) -> str:
    """Who is better off than alone, who is not, and of whom that cannot be told."""
    assert s.better_than_alone
    assert s.same_as_alone
    assert s.worse_than_alone
    parts = (s.better_than_alone, s.same_as_alone, s.worse_than_alone)
    better, same, worse = (shown(part.mean, ACCURACY, 0) for part in parts)
    return (
        f"{better} of its clients are better off than alone, {worse} worse off, and {same} the "
        "same within the noise of their test data."
    )


def not_better_than_trivial(summaries: Sequence[Summary], score: Score) -> list[str]:
    """A warning about methods that a constant answer matches."""
    poor = [s for s in summaries if s.trivial and score.sign * (s.last.mean - s.trivial.mean) <= 0]
    return [
        f"Warning: {s.label} does not beat the trivial answer (each client's commonest class or "
        f"mean target), whose {score.title} is {shown(s.trivial.mean, score)}."
        for s in poor
        if s.trivial
    ]
