"""What stands on the pages of the documentation, against the numbers that are kept beside it."""

import io
from pathlib import Path

import pandas as pd
import pytest

from fedkin.papers.claims import Verdict, judge
from fedkin.papers.index import PAPERS
from fedkin.papers.outcome import values_of
from fedkin.papers.results import read_results

PAGES = Path(__file__).parents[2] / "docs" / "reproduction"
TOLD = [result for result in read_results(PAGES) if result.measured]
SAID = {(paper, item.name, claim.text): claim
        for paper, items in PAPERS.items() for item in items for claim in item.claims}  # fmt: skip


def numbers(result):
    return pd.read_csv(io.StringIO(result.measured))


@pytest.mark.parametrize("result", TOLD, ids=lambda result: result.name)
def test_verdicts_on_the_pages_follow_from_the_numbers_of_every_seed(result):
    values = values_of(numbers(result))
    for shown in result.claims:
        judged = judge(SAID[result.paper, result.item, shown.text], values, result.looks)
        assert judged is not None
        assert judged.verdict is shown.verdict, shown.text


@pytest.mark.parametrize("result", TOLD, ids=lambda result: result.name)
def test_of_a_claim_that_holds_plain_means_of_these_numbers_are_as_it_says(result):
    table = numbers(result).pivot_table(
        index="seed", columns=["panel", "line", "measure"], values="value"
    )
    for shown in result.claims:
        claim = SAID[result.paper, result.item, shown.text]
        if shown.verdict is not Verdict.HOLDS or claim.enough:
            continue
        for part in claim.parts:
            terms = [term.key for term in part.terms]
            if not set(terms) <= set(table.columns):
                continue  # a panel that was not run
            both = table[terms].dropna()
            first, second = both[terms[0]], both[terms[-1]]
            number = first if len(terms) == 1 else first / second if part.ratio else first - second
            assert part.low < number[: shown.seeds].mean() < part.high, shown.text


def test_links_to_the_numbers_lead_somewhere():
    for result in TOLD:
        page = (PAGES / f"{result.paper}.md").read_text(encoding="utf-8")
        assert f"](results/{result.name}.csv)" in page
        assert (PAGES / "results" / f"{result.name}.csv").is_file()
