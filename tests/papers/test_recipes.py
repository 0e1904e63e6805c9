"""Recipes: complete, consistent, faithful to what was printed."""

from pathlib import Path

import pytest

from fedkin.methods import PermPrinted
from fedkin.methods.registry import all_methods
from fedkin.models import build
from fedkin.papers.claims import Verdict
from fedkin.papers.feddeper import PRINTED
from fedkin.papers.index import PAPERS
from fedkin.papers.results import read_results
from fedkin.runs.config import RunConfig

ALL = [(paper, item) for paper, items in PAPERS.items() for item in items]
IDS = [f"{paper} {item.name}" for paper, item in ALL]
# what shared/papers.md lists, and the stability experiment
LISTED = {
    "perm": {f"figure {n}" for n in range(1, 7)},
    "pfedkm": {"table 2", *(f"figure {n}" for n in range(1, 6))},
    "submodel": {"figure 1-4", "table 1", "table 2", "table 4", "table 5-8",
                 "experiment stability"},
    "unified": {f"figure {n}" for n in range(1, 9)},
    "feddeper": {"table 1", "figure 1", "figure 3", "figure 4-6", "figure 7"},
}  # fmt: skip


@pytest.mark.parametrize("paper", LISTED)
def test_every_table_and_figure_has_a_recipe(paper):
    assert {item.name for item in PAPERS[paper]} >= LISTED[paper]


@pytest.mark.parametrize(("paper", "item"), ALL, ids=IDS)
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_recipe_gives_checked_configs_with_folders_of_their_own(paper, item, scale):
    panels = [here for panel in item.panels if (here := panel.at(scale))]
    assert panels
    folders = set()
    for panel in panels:
        for form in (panel, panel.with_stand_in()) if panel.stand_in else (panel,):
            if form.experiment:
                continue
            entries = form.entries(2)
            assert len(entries) == 2 * len(form.lines)
            folders |= {(entry.label, entry.seed) for entry in entries}
            for entry in entries:
                assert isinstance(entry.config, RunConfig)
                assert entry.config.method in all_methods()
    runs = [(p, form) for p in panels if not p.experiment for form in range(1 + bool(p.stand_in))]
    assert len(folders) == sum(2 * len(p.lines) for p, _ in runs)


def test_every_model_can_be_built():
    forms = [p.at(s) for _, item in ALL for p in item.panels for s in ("small", "paper")]
    names = {form.run["model"]["name"] for form in forms if form and not form.experiment}
    for name in names - {"resnet18"}:
        assert build(name, (3, 32, 32), 10)


@pytest.mark.parametrize(("paper", "item"), ALL, ids=IDS)
def test_claims_and_printed_numbers_are_about_what_is_run_and_measured(paper, item):
    assert item.claims
    known = {measure.name for measure in item.measures}
    lines = {(p.name, line.label) for p in item.panels for line in p.lines}
    for claim in item.claims:
        for part in claim.parts:
            for term in filter(None, (part.first, part.second)):
                assert (term.panel, term.line) in lines
                assert term.measure in known


@pytest.mark.parametrize(("paper", "item"), ALL, ids=IDS)
def test_small_scale_lets_at_least_one_claim_be_tested(paper, item):
    small = {panel.name for panel in item.panels if panel.at("small")}
    assert any(part.first.panel in small for claim in item.claims for part in claim.parts)


def test_panels_of_one_name_are_one_panel_in_all_items_of_a_paper():
    for items in PAPERS.values():
        found = {}
        for item in items:
            for panel in item.panels:
                assert found.setdefault(panel.folder, panel) == panel


def test_feddepers_columns_carry_the_printed_numbers():
    (table,) = (item for item in PAPERS["feddeper"] if item.name == "table 1")
    for panel in table.panels:
        column, _, m = panel.name.rpartition("-m")
        numbers = [line.printed["accuracy"] for line in panel.lines]
        assert tuple(numbers) == PRINTED[column, int(m)]


def test_the_cnn_of_feddeper_has_small_kernels():
    (panel,) = (p for p in PAPERS["feddeper"][0].panels if p.name == "mnist-cnn-a-m5")
    net = build(panel.run["model"]["name"], (1, 28, 28), 10)
    shapes = [tuple(p.shape) for p in net.parameters() if p.dim() > 1]
    assert shapes[:2] == [(32, 1, 3, 3), (64, 32, 3, 3)]
    assert [shape[0] for shape in shapes[2:]] == [1024, 512, 10]


def test_items_of_several_numbers_answer_to_each_of_them():
    (item,) = (i for i in PAPERS["feddeper"] if i.name == "figure 4-6")
    assert [number for number in "345678" if item.covers("figure", number)] == ["4", "5", "6"]
    assert item.covers("figure", "4-6")
    assert not item.covers("table", "4")


def test_the_line_called_perm_is_as_printed_and_its_rivals_adapt_alike():
    (figure,) = (item for item in PAPERS["perm"] if item.name == "figure 1")
    assert {panel.run["model"]["name"] for panel in figure.panels} == {"logistic", "linear-no-bias"}
    # what always answering the commonest class gives is drawn across
    assert "constant" in {getattr(picture, "level", "") for picture in figure.pictures}
    for panel in figure.panels:
        lines = {line.label: line.options for line in panel.lines}
        assert {line.method for line in panel.lines if line.label == "PERM"} == {"perm-printed"}
        printed = PermPrinted(**lines["PERM"])
        assert (printed.schedule, printed.step_limit) == ("cyclic", "none")
        (without,) = (options for label, options in lines.items() if "equation 3" in label)
        changed = {key for key in without if without[key] != lines["PERM"].get(key)}
        assert changed == {"visit_lr"}
        assert without["visit_lr"] == pytest.approx(lines["PERM"]["lr"] / 50)
        steps = lines["PERM"]["local_steps"]
        assert lines["localized FedAvg"]["tune_steps"] == steps
        assert lines["Per-FedAvg"]["tune_steps"] == steps


def test_no_claim_of_feddeper_leaves_out_a_point_that_was_run():
    for number in ("1", "3"):
        (item,) = (i for i in PAPERS["feddeper"] if i.name == f"figure {number}")
        told = {(term.panel, term.line) for claim in item.claims for part in claim.parts
                for term in (part.first, part.second) if term}  # fmt: skip
        run = {(panel.name, line.label) for panel in item.panels for line in panel.lines}
        # iid with one step is what both kinds of data are measured against
        assert run - told <= {("tau-iid", "FedAvg, tau=1")}


def test_feddepers_rho_is_tuned_within_its_stable_range():
    (table,) = (item for item in PAPERS["feddeper"] if item.name == "table 1")
    for panel in table.panels:
        p = panel.run["fraction"]
        for line in panel.lines:
            if line.method == "feddeper":
                steps = 5 if line.options.get("half") else 10
                assert all(rho * steps < 0.5 * p / (1 - 0.5 * p) for rho in line.tune["rho"])
            else:
                assert not line.tune


def test_the_unified_figures_are_on_losses_without_l2_and_show_estimation_errors():
    for item in PAPERS["unified"]:
        assert not any("l2" in panel.run["model"] for panel in item.panels)
        if item.name in ("figure 1", "figure 2"):
            assert "error" in {measure.name for measure in item.measures}
            assert "estimation_error" in {getattr(p, "column", "") for p in item.pictures}
    seven, six = (next(i for i in PAPERS["unified"] if i.name == f"figure {n}") for n in (7, 6))
    assert len(seven.panels) == len(six.panels) == 12


def test_figure_1_of_feddeper_is_a_support_vector_machine():
    (item,) = (i for i in PAPERS["feddeper"] if i.name == "figure 1")
    for panel in item.panels:
        assert panel.run["model"] == {"name": "linear", "loss": "hinge"}


def test_figure_7_of_feddeper_has_common_samples_and_models_that_were_just_trained():
    (item,) = (i for i in PAPERS["feddeper"] if i.name == "figure 7")
    for panel in item.panels:
        assert panel.run["data"]["common_test"] > 0
        (fedavg,) = (line for line in panel.lines if line.method != "feddeper")
        # personal models are x after as many local steps as a round has
        assert fedavg.method == "fedavg-local"
        assert fedavg.options["tune_steps"] == fedavg.options["local_steps"] == 10
    # the curves intersect: personal models ahead at first, the global model in the end
    first, *_ = item.claims
    pairs = {(part.first.measure, part.second.measure) for part in first.parts}
    assert pairs == {("early_personal", "early_global"), ("global", "personal")}


def test_pfedkms_mnist_is_the_training_images_in_the_printed_sizes():
    (table,) = (item for item in PAPERS["pfedkm"] if item.name == "table 2")
    found = [p.run["data"] for p in table.panels if p.run["data"]["name"] == "mnist"]
    assert len(found) == 2
    for data in found:
        assert data["official_test"] == "leave-out"
        assert data["size_range"] == (470, 4116)
        assert (data["num_clients"], data["classes_per_client"]) == (40, 3)
        assert data["test_fraction"] == 0.25


def test_verdicts_near_chance_and_of_one_setting_of_four_say_so():
    items = {item.name: item for item in PAPERS["submodel"]}
    for claim in items["table 4"].claims:  # nothing is said unless a line is above guessing
        (learnt,) = claim.learnt
        assert (learnt.first.measure, learnt.second.measure) == ("test_accuracy", "chance")
        assert learnt.first.line == learnt.second.line == claim.parts[0].first.line
        assert learnt.low >= 5
    assert len(items["table 5-8"].panels) == 1
    assert all("one of the four settings" in claim.text for claim in items["table 5-8"].claims)


def test_every_claim_that_does_not_hold_on_the_pages_has_a_word_and_evidence():
    said = {(paper, item.name, claim.text): claim for paper, item in ALL for claim in item.claims}
    kept = read_results(Path(__file__).parents[2] / "docs" / "reproduction")
    assert kept
    for result in kept:
        for claim in result.claims:
            now = said.get((result.paper, result.item, claim.text))
            if now and claim.verdict is Verdict.FAILS:
                assert (now.why, bool(now.discussion)) == (now.why or "a word", True), claim.text


def test_l2sgd_steps_by_asvrcds_rules():
    # p_w = L^w/(L^w + L^beta) and 1/(4 Lscr) with Lscr = 2 max(L^b/p_b), L^w = lam/M and
    # L^beta = (L' + lam)/M; a client's own step is M times shorter than one on F
    (figure,) = (item for item in PAPERS["unified"] if item.name == "figure 1")
    for panel in figure.panels:
        (line,) = (line for line in panel.lines if line.method == "l2sgd")
        lam, clients, smooth = line.options["lam"], 20, 0.75
        w, beta = lam / clients, (smooth + lam) / clients
        p = w / (w + beta)
        assert line.options["p"] == pytest.approx(p)
        step = 1 / (4 * 2 * max(w / p, beta / (1 - p)))
        assert line.options["lr"] == pytest.approx(step / clients)
