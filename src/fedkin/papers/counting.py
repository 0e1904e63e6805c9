"""Which of several results decides a claim, and how many claims came out how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from fedkin.papers.claims import Verdict
from fedkin.papers.item import Item
from fedkin.papers.results import ClaimResult, Result


def texts_of(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(claim.text for result in results for claim in result.claims))


def claim_of(result: Result, text: str) -> ClaimResult | None:
    return next((claim for claim in result.claims if claim.text == text), None)


def rank(result: Result) -> tuple[bool, bool]:
    """Runs of today's recipes before older ones, then the larger scale."""
    return bool(result.made), result.scale == "paper"


def by_item(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    return {key: list(same) for key, same in groupby(results, lambda result: result.key[:2])}


def claimed(results: Sequence[Result]) -> dict[str, list[tuple[Result, ClaimResult]]]:
    """By claim, the results of the highest rank that have it."""
    found = {}
    for text in texts_of(results):
        told = [(result, claim) for result in results if (claim := claim_of(result, text))]
        best = max(rank(result) for result, _ in told)
        found[text] = [(result, claim) for result, claim in told if rank(result) == best]
    return found


def decisive(told: Sequence[tuple[Result, ClaimResult]]) -> tuple[Result, ClaimResult]:
    """Of several groups of panels the worst."""
    order = [Verdict.FAILS, Verdict.OPEN, Verdict.HOLDS]
    return min(told, key=lambda pair: order.index(pair[1].verdict))


def final(results: Sequence[Result]) -> dict[str, Verdict]:
    """By claim, the verdict that counts."""
    return {text: decisive(told)[1].verdict for text, told in claimed(results).items()}


def counts_of(results: Sequence[Result]) -> dict[Verdict, int]:
    found = dict.fromkeys(Verdict, 0)
    for same in by_item(results).values():
        for verdict in final(same).values():
            found[verdict] += 1
    return found


def unjudged(results: Sequence[Result], items: Sequence[Item]) -> int:
    """Claims of the recipes that no run has judged yet."""
    known = {(result.item, claim.text) for result in results for claim in result.claims}
    return sum((item.name, claim.text) not in known for item in items for claim in item.claims)
