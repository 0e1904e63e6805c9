"""What a paper claims, and whether it holds here: decided over seeds, never from one.

A claim has parts, each a number per seed (a difference or ratio of two lines, or a line's own
value) and bounds for its mean. The claim holds when all parts' 95 % intervals lie within
their bounds. It does not hold when some part's interval lies outside; since any one of them
suffices, these intervals are widened for their number (Bonferroni). Nor does it hold when
the line it speaks of diverged with two seeds at least and the others are not as said either;
where it diverged at all, it cannot hold. Otherwise the seeds do not tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import inf, isnan

from fedkin.reports.statistics import Estimate, estimate

# by panel, line and measure: a value for each seed, NaN where training diverged
Values = Mapping[tuple[str, str, str], Mapping[int, float]]
LEVEL = 0.05


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "cannot tell (needs more seeds)"


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
    """The mean of first - second (or first/second, or first) over seeds lies within bounds."""

    first: Term
    second: Term | None = None
    low: float = -inf
    high: float = inf
    ratio: bool = False

    def differences(self, values: Values) -> list[float] | None:
        """One number per seed that both have; None where something was not run at all."""
        terms = [term for term in (self.first, self.second) if term is not None]
        if any(term.key not in values for term in terms):
            return None
        first, *others = (values[term.key] for term in terms)
        if not others:
            found = list(first.values())
        elif self.ratio:
            found = [first[s] / others[0][s] for s in first if others[0].get(s)]
        else:
            found = [first[s] - others[0][s] for s in first if s in others[0]]
        return [value for value in found if not isnan(value)]

    def diverged(self, values: Values) -> list[bool]:
        """For each seed, whether the line that is spoken of diverged."""
        return [isnan(value) for value in values[self.first.key].values()]


@dataclass(frozen=True)
class Claim:
    """A sentence, its parts, and what is to be said where it does not hold here.

    `discussion` is kept here so that pages made anew still have it; a line is a paragraph.
    `learnt` are parts without which the order of lines means nothing, such as that they are
    above chance: unless they hold, nobody can tell.
    """

    text: str
    parts: tuple[Part, ...]
    discussion: str = ""
    learnt: tuple[Part, ...] = ()


@dataclass(frozen=True)
class JudgedPart:
    """A part, its number over seeds, its verdict, and with how many seeds its line diverged."""

    part: Part
    found: Estimate | None
    verdict: Verdict
    diverged: int


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict, and those of its parts that were run."""

    claim: Claim
    verdict: Verdict
    parts: tuple[JudgedPart, ...]


def judge(claim: Claim, values: Values) -> Judged | None:
    """The verdict on a claim; None where nothing it is about was run."""
    parts, learnt = (_judge_parts(each, values) for each in (claim.parts, claim.learnt))
    if not parts:
        return None
    if any(part.verdict is not Verdict.HOLDS for part in learnt):
        return Judged(claim, Verdict.OPEN, (*parts, *learnt))
    verdicts = {part.verdict for part in parts}
    if Verdict.FAILS in verdicts:
        return Judged(claim, Verdict.FAILS, parts)
    return Judged(claim, Verdict.OPEN if Verdict.OPEN in verdicts else Verdict.HOLDS, parts)


def _judge_parts(parts: Iterable[Part], values: Values) -> tuple[JudgedPart, ...]:
    """Those that were run."""
    numbers = [(part, part.differences(values)) for part in parts]
    known = [(part, found) for part, found in numbers if found is not None]
    return tuple(_judge_part(p, found, len(known), p.diverged(values)) for p, found in known)


def _judge_part(
    part: Part, numbers: Sequence[float], parts: int, diverged: Sequence[bool]
) -> JudgedPart:
    found = estimate(numbers)
    wide = estimate(numbers, 1 - LEVEL / parts)
    verdict = Verdict.OPEN
    if found and wide and found.low is not None and found.high is not None:
        assert wide.low is not None
        assert wide.high is not None
        if part.low < found.low and found.high < part.high and not any(diverged):
            verdict = Verdict.HOLDS
        elif wide.high < part.low or wide.low > part.high:
            verdict = Verdict.FAILS
    if sum(diverged) > 1 and not any(part.low < number < part.high for number in numbers):
        verdict = Verdict.FAILS
    return JudgedPart(part, found, verdict, sum(diverged))


# the usual claims -----------------------------------------------------------------------


def above(
    text: str, first: str, others: Iterable[str], measure: str, panels: Iterable[str],
    discussion: str = "", by: float = 0.0,
) -> Claim:  # fmt: skip
    """In every panel the first line's value is larger than the others', by so much at least."""
    others = tuple(others)
    pairs = [(Term(p, first, measure), Term(p, o, measure)) for p in panels for o in others]
    return Claim(text, tuple(Part(a, b, low=by) for a, b in pairs), discussion)


def below(
    text: str, first: str, others: Iterable[str], measure: str, panels: Iterable[str],
    discussion: str = "",
) -> Claim:  # fmt: skip
    """In every panel the first line's value is smaller than the others'."""
    others = tuple(others)
    pairs = [(Term(p, first, measure), Term(p, o, measure)) for p in panels for o in others]
    return Claim(text, tuple(Part(a, b, high=0.0) for a, b in pairs), discussion)


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
        Part(Term(p, b, measure), Term(p, a, measure), low=0.0)
        for p in panels
        for a, b in pairwise(lines)
    ]
    return Claim(text, tuple(parts), discussion)


def rising_over_panels(
    text: str, lines: Iterable[str], measure: str, panels: Sequence[str], discussion: str = ""
) -> Claim:
    """Each line's value is larger in a panel than in the one before it."""
    parts = [
        Part(Term(b, line, measure), Term(a, line, measure), low=0.0)
        for line in lines
        for a, b in pairwise(panels)
    ]
    return Claim(text, tuple(parts), discussion)
