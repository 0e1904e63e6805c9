"""Outcomes as text, csv, page and figures; and the page of all of them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedkin.errors import FedkinError
from fedkin.papers import collection
from fedkin.papers.claims import Verdict, Why, above
from fedkin.papers.figures import Against, Curves, Maps
from fedkin.papers.item import Line, Shown
from fedkin.papers.measures import CONSTANT
from fedkin.papers.outcome import Outcome
from fedkin.papers.presentation import as_text, discussions, interval, present, verdicts
from fedkin.runs.groups import Records
from tests.papers.helpers import LINES, item, panel
from tests.papers.test_execution import WRITERS, go


def made(what=None, values=None, **changes):
    """An outcome that nobody ran."""
    what = what or item()
    numbers = values or {
        ("digits", "FedAvg", "accuracy"): {0: 91.0, 1: 92.0, 2: 93.0},
        ("digits", "pFedKM K=2", "accuracy"): {0: 81.1, 1: 82.0, 2: 82.9},
    }
    facts = {"paper": "paper", "item": what, "scale": "small", "panels": what.panels,
             "left_out": (), "values": numbers, "seeds": {p.name: 3 for p in what.panels},
             "seconds": 100.0, "folder": Path(), "looks": (3,), "made": "2026-11-18"}  # fmt: skip
    return Outcome(**{**facts, **changes})


def test_the_papers_numbers_stand_beside_ours_with_intervals():
    text = as_text(made(), verdicts(made()))
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    (ours,) = (row for row in rows if "FedAvg" in row)
    assert "90.00" in ours
    assert "92.00 ± 2.48" in ours
    assert "small scale, 3 seeds" in text


def test_a_level_that_no_line_decides_is_drawn_across(tmp_path):
    (tmp_path / "config.toml").write_text('method = "fedavg"\n')
    pd.DataFrame({"round": [1, 2], "personal_accuracy": [0.3, 0.6]}).to_csv(
        tmp_path / "metrics.csv", index=False
    )
    drawn, one = panel(), item()
    values = {("digits", "FedAvg", "constant"): {0: 40.0, 1: 60.0, 2: float("nan")}}
    shown = Shown((drawn,), {("digits", "FedAvg"): [Records(tmp_path)]}, values,
                  (*one.measures, CONSTANT))  # fmt: skip
    curves = Curves("personal_accuracy", "accuracy", level="constant", times=0.01)
    (axes,) = curves.draw(shown)[0].figure.axes
    across = [line for line in axes.lines if "commonest" in str(line.get_label())]
    assert [line.get_ydata()[0] for line in across] == [pytest.approx(0.5)]


def test_a_claim_says_how_many_of_its_comparisons_were_not_run():
    two = item(panel(), panel("large"))
    text = as_text(made(two), verdicts(made(two)))
    assert "; 1 more not run)" in text
    assert "not run" not in as_text(made(), verdicts(made()))


def test_every_claim_has_a_line_with_its_verdict_and_numbers():
    text = as_text(made(), verdicts(made()))
    assert "**holds**: FedAvg is better. (FedAvg minus pFedKM K=2: +10.00 [" in text
    assert "That is how it is." not in text


def test_what_is_smaller_than_in_the_paper_and_which_claims_are_ours_is_told(tmp_path):
    fewer = tuple(replace(line, options={**line.options, "local_steps": 3}) for line in LINES)
    shrunk = panel(small={"rounds": 2, "model": {"name": "mlp:4"}}, small_lines=fewer)
    _, outcome = go(item(shrunk, ours="The bound is ours."), tmp_path)
    text = as_text(outcome, verdicts(outcome))
    assert "rounds 2, model.name mlp:4, local_steps 3." in text
    assert "The bound is ours." in text
    at_paper = as_text(replace(outcome, scale="paper"), [])
    assert "Smaller than in the paper" not in at_paper


WRONG = above("pFedKM is better.", "pFedKM K=2", ["FedAvg"], "accuracy", ["digits"], "Why not.")


def test_claims_that_do_not_hold_are_discussed():
    outcome = made(item(claims=(WRONG, replace(WRONG, discussion=""))))
    text = as_text(outcome, verdicts(outcome))
    assert "**does not hold**: pFedKM is better." in text
    assert "Why not." in text
    assert "Not discussed yet." in text


def test_what_is_said_of_two_claims_is_said_once():
    claims = [replace(WRONG, discussion=words) for words in ("Both.\nOne.", "Both.\nTwo.", "One.")]
    outcome = made(item(claims=tuple(claims)))
    found = discussions(verdicts(outcome))
    assert found == [["Both.", "One."], ["Two."], ["As said above."]]


def test_a_single_seed_has_no_interval_and_tells_nothing():
    once = {"FedAvg": 9.0, "pFedKM K=2": 1.0}
    values = {("digits", line, "accuracy"): {0: value} for line, value in once.items()}
    outcome = made(values=values, seeds={"digits": 1})
    text = as_text(outcome, verdicts(outcome))
    assert f"**{Verdict.OPEN}**" in text
    assert "±" not in text


def test_diverged_seeds_are_told():
    nan = float("nan")
    assert interval({0: nan, 1: nan}, ".2f") == "diverged"
    assert interval({0: 1.0, 1: nan}, ".2f") == "1.00 (1 of 2 diverged)"
    found = {"FedAvg": {0: 2.0, 1: 2.1, 2: nan}, "pFedKM K=2": {0: 1.0, 1: 1.0, 2: 1.0}}
    values = {("digits", line, "accuracy"): numbers for line, numbers in found.items()}
    outcome = made(values=values, seeds={"digits": 3})
    text = as_text(outcome, verdicts(outcome))
    assert f"**{Verdict.OPEN}**" in text
    assert "(1 more diverged)" in text


def test_an_outcome_is_written_as_text_tables_page_and_figures(tmp_path):
    _, outcome = go(item(), tmp_path)
    text = present(outcome)
    folder = outcome.folder
    assert (folder / "result.md").read_text() == text
    table = pd.read_csv(folder / "table.csv")
    assert table.loc[0, "paper"] == 90
    assert table["count"].tolist() == [2] * 4
    claims = pd.read_csv(folder / "claims.csv")
    assert claims["first"].tolist() == ["digits/FedAvg/accuracy"]
    page = (folder / "report.html").read_text()
    assert page.count("<figure") == 2
    assert "FedAvg is better." in page
    names = {"digits-personal-accuracy", "digits-loss"}
    for kind in ("png", "svg", "csv"):
        assert {path.stem for path in (folder / "figures").glob(f"*.{kind}")} == names
    curve = pd.read_csv(folder / "figures/digits-personal-accuracy.csv")
    own = pd.read_csv(tmp_path / "paper/small/digits/fedavg/seed-0/metrics.csv")
    other = pd.read_csv(tmp_path / "paper/small/digits/fedavg/seed-1/metrics.csv")
    mean = (own["personal_accuracy"].iloc[-1] + other["personal_accuracy"].iloc[-1]) / 2
    assert curve[curve["line"] == "FedAvg"]["mean"].iloc[-1] == pytest.approx(mean)


def test_a_stand_in_is_named_in_every_output(tmp_path):
    _, outcome = go(item(WRITERS), tmp_path, stand_in=True)
    present(outcome)
    for name in ("result.md", "report.html", "table.csv"):
        assert "STAND-IN" in (outcome.folder / name).read_text()
    svg = outcome.folder / "figures" / "writers-stand-in-loss.svg"
    assert svg.exists()


def test_sweeps_are_drawn_against_their_option(tmp_path):
    lines = tuple(Line(f"FedAvg, lr={lr}", "fedavg", {"lr": lr}) for lr in (0.1, 0.2))
    swept = item(panel(lines=lines), claims=())
    values = {("digits", line.label, "accuracy"): {0: 1.0, 1: 2.0} for line in lines}
    shown = Shown(swept.panels, {}, values, swept.measures)
    (drawing,) = Against("lr", "accuracy", "title").draw(shown)
    assert drawing.numbers["lr"].tolist() == [0.1, 0.2]
    assert drawing.numbers["mean"].tolist() == [1.5, 1.5]
    assert not Against("rho", "accuracy", "title").draw(shown)


def test_maps_are_drawn_of_lines_that_have_them(tmp_path):
    _, outcome = go(item(pictures=(Maps("cluster"),)), tmp_path)
    present(outcome)
    assert {path.stem for path in (outcome.folder / "figures").glob("*.png")} == {
        "digits-clusters-2"
    }


def written(folder, runs):
    """The pages' texts by name, after they were written."""
    count = len(collection.write_pages(folder, runs))
    return count, {path.name: path.read_text() for path in sorted(folder.glob("*.md"))}


def test_pages_are_made_from_what_was_run(tmp_path, monkeypatch):
    first, second = item(), item(WRITERS, number="8")
    monkeypatch.setattr(collection, "PAPERS", {"paper": (first, second)})
    _, outcome = go(first, tmp_path / "runs")
    present(outcome)
    folder = tmp_path / "docs" / "reproduction"
    count, texts = written(folder, tmp_path / "runs")
    assert count == 1
    assert set(texts) == {"index.md", "paper.md"}
    page = texts["paper.md"]
    # the table of verdicts comes first, and its links lead to headings
    assert page.index("| where") < page.index("## Table 7: accuracy")
    assert "[table 7](#table-7-accuracy)" in page
    (counts,) = re.findall(r"Of 1 claims: holds (\d), does not hold (\d), cannot tell (\d)", page)
    (verdict,) = pd.read_csv(outcome.folder / "claims.csv")["verdict"]
    assert dict(zip(map(str, Verdict), counts, strict=True))[verdict] == "1"
    assert "{} hold, {} do not, and for {} the seeds".format(*counts) in texts["index.md"]
    assert "- table 8: the writers are needed" in page
    shown = sorted((folder / "figures").iterdir())
    assert [f"(figures/{path.name})" in page for path in shown] == [True, True]
    facts = json.loads((outcome.folder / "facts.json").read_text())
    assert facts["digits"]["seeds"] == 2


def test_the_summary_says_in_a_sentence_why_a_claim_does_not_hold(tmp_path, monkeypatch):
    wrong = replace(WRONG, discussion="It is e.g. too small. Much more could be said.\nAnd more.")
    ours = replace(wrong, text="Not in the paper: pFedKM is better.")
    what = item(claims=(wrong, ours))
    monkeypatch.setattr(collection, "PAPERS", {"paper": (what,)})
    monkeypatch.setattr(collection, "outcomes", lambda out: [made(what, folder=tmp_path)])
    _, texts = written(tmp_path / "pages", tmp_path)
    assert "pFedKM is better. *It is e.g. too small.*" in texts["index.md"]
    assert "1 more that do not hold are claims we added" in texts["index.md"]
    assert texts["paper.md"].count("Much more could be said.") == 1
    assert texts["paper.md"].count("<details>") == texts["paper.md"].count("</details>") > 2
    # what a recipe says later replaces what was said then
    later = item(claims=(replace(wrong, discussion="It is noisy."), ours))
    monkeypatch.setattr(collection, "PAPERS", {"paper": (later,)})
    monkeypatch.setattr(collection, "outcomes", lambda out: [])
    _, texts = written(tmp_path / "pages", tmp_path)
    assert "*It is noisy.*" in texts["index.md"]


def test_pages_keep_items_that_are_not_run_here(tmp_path, monkeypatch):
    first, second = item(), item(number="8")
    monkeypatch.setattr(collection, "PAPERS", {"paper": (first, second)})
    folder = tmp_path / "pages"
    for what, runs in ((first, "here"), (second, "elsewhere")):
        _, outcome = go(what, tmp_path / runs)
        present(outcome)
        count, texts = written(folder, tmp_path / runs)
        assert count == 1
    page = texts["paper.md"]
    assert page.index("## Table 7") < page.index("## Table 8")
    shown = sorted((folder / "figures").iterdir())
    assert len(shown) == 4
    assert all(f"(figures/{path.name})" in page for path in shown)
    assert written(folder, tmp_path / "nowhere") == (0, texts)
    monkeypatch.setattr(collection, "PAPERS", {"paper": (second,)})
    _, texts = written(folder, tmp_path / "nowhere")
    assert "Table 7" not in texts["paper.md"]
    assert len(list((folder / "figures").iterdir())) == 2


def test_pages_keep_panels_that_are_not_run_here(tmp_path, monkeypatch):
    both = item(panel(), replace(panel(), name="more", title="more digits"))
    monkeypatch.setattr(collection, "PAPERS", {"paper": (both,)})
    folder, texts = tmp_path / "pages", []
    for only, runs in (("digits", "here"), ("more", "there"), ("more", "there")):
        _, outcome = go(both, tmp_path / runs, only=[only])
        present(outcome)
        texts.append(written(folder, tmp_path / runs)[1]["paper.md"])
    assert [text.count("`fedkin reproduce paper --table 7`") for text in texts] == [1, 2, 2]
    assert "Not run here: more digits." in texts[2]
    go(both, tmp_path / "there", only=["digits"])
    _, last = written(folder, tmp_path / "there")
    assert last["paper.md"].count("`fedkin reproduce paper --table 7`") == 1


def test_claims_link_to_their_section_where_an_older_result_has_another_title(
    tmp_path, monkeypatch
):
    both = item(panel(), replace(panel(), name="more", title="more digits"))
    monkeypatch.setattr(collection, "PAPERS", {"paper": (both,)})
    folder = tmp_path / "pages"
    for only in ("digits", "more"):
        _, outcome = go(both, tmp_path / only, only=[only])
        present(outcome)
        text = written(folder, tmp_path / only)[1]["paper.md"]
        for path in (folder / "results").glob("*.json") if only == "digits" else ():
            older = json.loads(path.read_text()) | {"title": "what it was once called", "made": ""}
            path.write_text(json.dumps(older))
    (heading,) = re.findall("^## (Table 7.*)$", text, re.MULTILINE)
    links = set(re.findall(r"\[table 7\]\(#([^)]*)\)", text))
    assert links == {heading.lower().replace(":", "").replace(" ", "-")}


def test_pages_keep_the_numbers_of_every_seed(tmp_path, monkeypatch):
    both = item(panel(), replace(panel(), name="more", title="more digits"))
    monkeypatch.setattr(collection, "PAPERS", {"paper": (both,)})
    folder = tmp_path / "pages"
    for only, runs in (("digits", "here"), ("more", "there")):
        _, outcome = go(both, tmp_path / runs, only=[only])
        present(outcome)
        text = written(folder, tmp_path / runs)[1]["paper.md"]
    for name, runs in (("paper-table-7-small", "here"), ("paper-table-7-small-2", "there")):
        own = pd.read_csv(folder / "results" / f"{name}.csv")
        measured = pd.read_csv(tmp_path / runs / "paper/small/table-7/measured.csv")
        where = ["panel", "line", "measure", "seed"]
        own, measured = (table.set_index(where)["value"].sort_index() for table in (own, measured))
        pd.testing.assert_series_equal(own, measured, rtol=1e-9)
        assert f"Of every seed: [{name}.csv](results/{name}.csv)" in text
    # results that are no longer told take their numbers with them
    monkeypatch.setattr(collection, "PAPERS", {"paper": ()})
    written(folder, tmp_path / "nowhere")
    assert not list((folder / "results").iterdir())


def test_a_result_that_somebody_broke_is_refused(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "paper-table-7-small.json").write_text('{"paper": 3}')
    with pytest.raises(FedkinError, match=r"paper-table-7-small\.json is not a result"):
        collection.write_pages(tmp_path, tmp_path / "nowhere")


def test_runs_of_todays_recipes_count_before_older_ones(tmp_path, monkeypatch):
    claim = item().claims[0].because(Why.SETTING, "Too few rounds.")
    what = item(claims=(claim,))
    monkeypatch.setattr(collection, "PAPERS", {"paper": (what,), "beyond": ()})
    turned = {
        ("digits", "FedAvg", "accuracy"): {0: 81.1, 1: 82.0, 2: 82.9},
        ("digits", "pFedKM K=2", "accuracy"): {0: 91.0, 1: 92.0, 2: 93.0},
    }
    older = made(what, turned, folder=tmp_path, scale="paper", made="")
    newer = made(what, folder=tmp_path, looks=(3, 6, 12))
    monkeypatch.setattr(collection, "outcomes", lambda out: [older])
    _, texts = written(tmp_path / "pages", tmp_path)
    assert "0 hold, 1 do not" in texts["index.md"]
    assert "1 of them have only runs older" in texts["index.md"]
    assert "*setting: That is how it is.*" in texts["index.md"]
    assert "**does not hold**: setting (older run)" in texts["paper.md"]
    monkeypatch.setattr(collection, "outcomes", lambda out: [newer])
    _, texts = written(tmp_path / "pages", tmp_path)
    assert "1 hold, 0 do not" in texts["index.md"]
    assert "All are from runs of the recipes as they are now" in texts["index.md"]
    assert "| holds, 3 seeds" in texts["paper.md"]
    assert "run on 2026-11-18" in texts["paper.md"]


def test_claims_of_which_all_panels_were_run_again_count_by_the_new_runs(tmp_path, monkeypatch):
    def with_values(panels, first):
        lines = {"FedAvg": first, "pFedKM K=2": 85.0}
        values = {(p.name, line, "accuracy"): {s: number + s / 10 for s in range(3)}
                  for p in panels for line, number in lines.items()}  # fmt: skip
        return made(what, values, folder=tmp_path, panels=panels)

    both = (panel(), panel("more"))
    one, two = (
        above(text, "FedAvg", ("pFedKM K=2",), "accuracy", [p.name for p in panels])
        for text, panels in (("On digits.", both[:1]), ("On both.", both))
    )
    what = item(*both, claims=(one, two))
    monkeypatch.setattr(collection, "PAPERS", {"paper": (what,), "beyond": ()})
    for panels, first in ((both, 80.0), (both[:1], 90.0)):
        now = with_values(panels, first)
        monkeypatch.setattr(collection, "outcomes", lambda out, now=now: [now])
        written(tmp_path / "pages", tmp_path)
    older, newer = sorted(collection.read_results(tmp_path / "pages"), key=lambda r: -len(r.panels))
    assert [(c.text, c.verdict) for c in older.claims] == [("On both.", Verdict.FAILS)]
    assert ("On digits.", Verdict.HOLDS) in [(c.text, c.verdict) for c in newer.claims]


def test_a_word_says_why_a_claim_does_not_hold():
    wrong = WRONG.because(Why.PRINT, "The table says otherwise.")
    text = as_text(made(item(claims=(wrong,))), verdicts(made(item(claims=(wrong,)))))
    assert "**does not hold (print)**" in text
    assert "The table says otherwise." in text
