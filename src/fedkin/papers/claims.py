"""What a paper claims, and whether it holds here: decided over seeds, never from one.

A claim has parts, each a number per seed (a difference or ratio of two lines, or a line's own
value) and bounds for its mean. The claim holds when the 95 % intervals of all parts, or of as many
as it needs, lie within their bounds. It does not hold when some part's interval lies outside; since
any one of them suffices, these intervals are widened for their number (Bonferroni). Nor does it
hold when two lines said to differ are level, their difference's widened interval within what counts
as none on either side of zero (of accuracies, half a point), or when the line it speaks of diverged
with two seeds at least and the others are not as said either; where it diverged at all, it cannot
hold. Otherwise the seeds do not tell.

Where seeds are added until claims are settled, the numbers of seeds at which one looks are
fixed beforehand, and each look has an equal share of the 5 %. A part keeps the verdict of the
look that settled it. By the union bound a wrong verdict is then as unlikely as with one look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from math import inf, isnan

from fedkin.reports.statistics import Estimate, estimate

# by panel, line and measure: a value for each seed, NaN where training diverged
Values = Mapping[tuple[str, str, str], Mapping[int, float]]
LEVEL = 0.05
# points of accuracy: what certainly differs by less is level
HALF_A_POINT = 0.5
# seeds are added up to this number
MOST_SEEDS = 20


def planned_looks(first: int, most: int = MOST_SEEDS) -> tuple[int, ...]:
    """At which numbers of seeds claims are judged: the first, twice that and so on, the most."""
    found = [first]
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return tuple(found)


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "cannot tell (needs more seeds)"


class Why(StrEnum):
    """Why a claim does not hold here.

    print: the paper's numbers or text contradict each other, or its setting diverges. setting:
    the paper leaves it open, or the scale is smaller than its own; with another it would
    hold. ours: a mistake or a claim of our own.
    """

    PRINT = "print"
    SETTING = "setting"
    OURS = "ours"


@dataclass(frozen=True)
class Term:
    """A number: what one line of a panel measures."""

    panel: str
    line: str
    measure: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.panel, self.line, self.measure


@dataclass(frozen=True)
class Part:
    """The mean of first - second (or first/second, or first) over seeds lies within bounds.

    `same`: a difference that is certainly smaller than this is none.
    """

    first: Term
    second: Term | None = None
    low: float = -inf
    high: float = inf
    ratio: bool = False
    same: float = 0.0

    @property
    def terms(self) -> tuple[Term, ...]:
        return tuple(term for term in (self.first, self.second) if term is not None)

    def differences(self, values: Values, count: int) -> list[float]:
        """One number for each of the first seeds that both have."""
        first, *others = (
            {s: value for s, value in values[term.key].items() if s < count} for term in self.terms
        )
        if not others:
            found = list(first.values())
        elif self.ratio:
            found = [first[s] / others[0][s] for s in first if others[0].get(s)]
        else:
            found = [first[s] - others[0][s] for s in first if s in others[0]]
        return [value for value in found if not isnan(value)]

    def diverged(self, values: Values, count: int) -> list[bool]:
        """For each of the first seeds, whether the line that is spoken of diverged."""
        return [isnan(value) for s, value in values[self.first.key].items() if s < count]


@dataclass(frozen=True)
class Claim:
    """A sentence, its parts, and what is to be said where it does not hold here.

    `discussion` is kept here so that pages made anew still have it; a line is a paragraph. It is
    the evidence for `why`.
    `enough`: of its parts so many suffice, as in "on three of four sets".
    `learnt` are parts without which the order of lines means nothing, such as that they are
    above chance: unless they hold, nobody can tell.
    """

    text: str
    parts: tuple[Part, ...]
    discussion: str = ""
    learnt: tuple[Part, ...] = ()
    why: Why | None = None
    enough: int | None = None

    def because(self, why: Why, *paragraphs: str) -> Claim:
        """With the reason why it does not hold, and more evidence for it."""
        told = [text for text in (self.discussion, *paragraphs) if text]
        return replace(self, why=why, discussion="\n".join(told))


@dataclass(frozen=True)
class JudgedPart:
    """A part, its number over seeds, its verdict, and with how many seeds its line diverged.

    `seeds`: with how many it was settled, or how many there are.
    """

    part: Part
    found: Estimate | None
    verdict: Verdict
    diverged: int
    seeds: int


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict, and those of its parts that were run."""

    claim: Claim
    verdict: Verdict
    parts: tuple[JudgedPart, ...]

    @property
    def seeds(self) -> int:
        """How many were needed: for all parts, or for the first that showed it does not hold."""
        decisive = [part.seeds for part in self.parts if part.verdict is self.verdict]
        return (min if self.verdict is Verdict.FAILS else max)(decisive or [0])

    @property
    def unsettled(self) -> set[tuple[str, str]]:
        """By panel, the lines of which more seeds may decide the claim.

        What lines have hardly learnt, on average, takes more rounds to tell instead.
        """
        learnt = [part for part in self.parts if part.part in self.claim.learnt]
        early = [p for p in learnt if p.verdict is Verdict.FAILS
                 or (p.found and p.found.mean <= p.part.low)]  # fmt: skip
        if self.verdict is not Verdict.OPEN or early:
            return set()
        return {(term.panel, term.line) for part in self.parts if part.verdict is Verdict.OPEN
                for term in part.part.terms}  # fmt: skip


def judge(claim: Claim, values: Values, looks: Sequence[int] | None = None) -> Judged | None:
    """The verdict on a claim; None where nothing it is about was run.

    `looks`: at which numbers of seeds it is judged; once, with all there are, if left out.
    """
    parts, learnt = (_judge_parts(each, values, looks) for each in (claim.parts, claim.learnt))
    if not parts:
        return None
    if any(part.verdict is not Verdict.HOLDS for part in learnt):
        return Judged(claim, Verdict.OPEN, (*parts, *learnt))
    verdicts = [part.verdict for part in parts]
    # all that were run, or so many of all that there are
    need, there = (claim.enough, len(claim.parts)) if claim.enough else (len(parts), len(parts))
    if verdicts.count(Verdict.FAILS) > there - need:
        return Judged(claim, Verdict.FAILS, parts)
    held = verdicts.count(Verdict.HOLDS) >= need
    return Judged(claim, Verdict.HOLDS if held else Verdict.OPEN, parts)


def _judge_parts(
    parts: Iterable[Part], values: Values, looks: Sequence[int] | None
) -> tuple[JudgedPart, ...]:
    """Those that were run."""
    known = [part for part in parts if all(term.key in values for term in part.terms)]
    return tuple(_judge_part(part, values, len(known), looks) for part in known)


def _judge_part(part: Part, values: Values, parts: int, looks: Sequence[int] | None) -> JudgedPart:
    """The verdict of the first look that settles it, else what the last one shows."""
    there = min(1 + max(values[term.key]) for term in part.terms)
    level = LEVEL / len(looks or (there,))
    reached = [count for count in looks or (there,) if count <= there]
    if not reached:  # too few seeds to look at
        found = estimate(part.differences(values, there), 1 - level)
        return JudgedPart(part, found, Verdict.OPEN, sum(part.diverged(values, there)), there)
    for count in reached:
        numbers, diverged = part.differences(values, count), part.diverged(values, count)
        verdict = _look(part, numbers, diverged, level, parts)
        if verdict is not Verdict.OPEN:
            break
    return JudgedPart(part, estimate(numbers, 1 - level), verdict, sum(diverged), count)


def _look(
    part: Part, numbers: Sequence[float], diverged: Sequence[bool], level: float, parts: int
) -> Verdict:
    found, wide = estimate(numbers, 1 - level), estimate(numbers, 1 - level / parts)
    if sum(diverged) > 1 and not any(part.low < number < part.high for number in numbers):
        return Verdict.FAILS
    if found and wide and found.low is not None and found.high is not None:
        assert wide.low is not None
        assert wide.high is not None
        if part.low < found.low and found.high < part.high and not any(diverged):
            return Verdict.HOLDS
        assert wide.high is not None
        if wide.high < part.low or wide.low > part.high:
            return Verdict.FAILS
        if -part.same < wide.low and wide.high < part.same and not any(diverged):
            return Verdict.FAILS
    return Verdict.OPEN


# the usual claims -----------------------------------------------------------------------


def differs(
    first: Term, second: Term, low: float = -inf, high: float = inf, same: float = 0.0
) -> Part:
    """A difference on the side of zero that `low` or `high` says; level accuracies have none."""
    of_accuracies = first.measure.endswith("accuracy") and second.measure.endswith("accuracy")
    return Part(first, second, low, high, same=HALF_A_POINT if of_accuracies else same)


def above(
    text: str, first: str, others: Iterable[str], measure: str, panels: Iterable[str],
    discussion: str = "", by: float = 0.0, same: float = 0.0,
) -> Claim:  # fmt: skip
    """In every panel the first line's value is larger than the others', by so much at least."""
    others = tuple(others)
    pairs = [(Term(p, first, measure), Term(p, o, measure)) for p in panels for o in others]
    return Claim(text, tuple(differs(a, b, low=by, same=same) for a, b in pairs), discussion)


def below(
    text: str, first: str, others: Iterable[str], measure: str, panels: Iterable[str],
    discussion: str = "",
) -> Claim:  # fmt: skip
    """In every panel the first line's value is smaller than the others'."""
    others = tuple(others)
    pairs = [(Term(p, first, measure), Term(p, o, measure)) for p in panels for o in others]
    return Claim(text, tuple(differs(a, b, high=0.0) for a, b in pairs), discussion)


def times(
    text: str, first: str, others: Iterable[str], measure: str, panels: Iterable[str],
    low: float, high: float, discussion: str = "",
) -> Claim:  # fmt: skip
    """In every panel the first line's value over each other's lies between low and high."""
    others = tuple(others)
    parts = [
        Part(Term(p, first, measure), Term(p, o, measure), low, high, ratio=True)
        for p in panels
        for o in others
    ]
    return Claim(text, tuple(parts), discussion)


def between(
    text: str, lines: Iterable[str], measure: str, panels: Iterable[str], low: float = -inf,
    high: float = inf, discussion: str = "",
) -> Claim:  # fmt: skip
    """In every panel each line's own value lies between low and high."""
    lines = tuple(lines)
    parts = [Part(Term(p, line, measure), None, low, high) for p in panels for line in lines]
    return Claim(text, tuple(parts), discussion)


def rising(
    text: str, lines: Sequence[str], measure: str, panels: Iterable[str], discussion: str = ""
) -> Claim:
    """In every panel each line's value is larger than that of the line before it."""
    parts = [
        differs(Term(p, b, measure), Term(p, a, measure), low=0.0)
        for p in panels
        for a, b in pairwise(lines)
    ]
    return Claim(text, tuple(parts), discussion)


def rising_over_panels(
    text: str, lines: Iterable[str], measure: str, panels: Sequence[str], discussion: str = "",
    same: float = 0.0,
) -> Claim:  # fmt: skip
    """Each line's value is larger in a panel than in the one before it."""
    parts = [
        Part(Term(b, line, measure), Term(a, line, measure), low=0.0, same=same)
        for line in lines
        for a, b in pairwise(panels)
    ]
    return Claim(text, tuple(parts), discussion)
