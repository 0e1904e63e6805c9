"""Tables of methods side by side, told in one."""

from fedkin.papers.claims import Verdict
from fedkin.papers.pages import pages
from fedkin.papers.results import ClaimResult, Result
from fedkin.papers.which import which_when
from tests.papers.helpers import item


def result(title, *rows, item="table 7"):
    return Result(
        paper="ours", item=item, title=title, scale="small", panels=[], stands_in=False, facts=[],
        notes=[], rows=[dict(zip(("line", "A", "B"), row, strict=False)) for row in rows],
        claims=[ClaimResult(text="it is so", verdict=Verdict.HOLDS, numbers="")], figures=[],
        made="2026-11-19",
    )  # fmt: skip


CLASSES = (("PERM", "**90.0**", "**80.0**"), ("FedAvg", "**89.5**", "60.5"))
PAPERS = {"ours": (item(),), "other": (item(),)}
SIZES = (("PERM", "**70.0**"), ("Ditto", "diverged"))


def test_every_method_is_counted_where_it_may_be_best_and_told_its_largest_distance():
    found = which_when([result("classes", *CLASSES), result("sizes", *SIZES, item="table 8")])
    assert found == [
        {"method": "PERM", "classes": "2 of 2, at most 0.0 below",
         "sizes": "1 of 1, at most 0.0 below"},
        {"method": "FedAvg", "classes": "1 of 2, at most 19.5 below", "sizes": "—"},
        {"method": "Ditto", "classes": "—", "sizes": "—"},
    ]  # fmt: skip


def test_panels_that_were_run_apart_are_counted_together():
    apart = [result("classes", *(row[:2] for row in CLASSES)), result("classes", *CLASSES)]
    assert which_when(apart)[1]["classes"] == "2 of 3, at most 19.5 below"


def test_the_conclusion_stands_first_on_the_page_of_what_is_no_papers():
    told = [result("classes", *CLASSES, item=item().name)]
    made = pages(told, PAPERS, {"ours": "which"}, "ours", "PERM, in short.")
    assert made["ours.md"].index("PERM, in short.") < made["ours.md"].index("at most 19.5 below")
    assert "in short" not in made["other.md"]
