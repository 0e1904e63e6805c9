"""The report holds what it promises, in one file that needs nothing else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedkin.errors import FedkinError
from fedkin.reports import write_report
from fedkin.reports.maps import (
    capacity_cost_plot,
    capacity_plot,
    label_histogram,
    mixing_map,
    shrunk,
)
from fedkin.reports.tables import result_rows
from fedkin.reports.tensorboard import write_events
from fedkin.reports.words import listed, points, shown
from fedkin.reports.write import conclusions, findings
from fedkin.runs.groups import Group, Records
from fedkin.runs.measures import ACCURACY
from tests.runs.folders import write_run

NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods over three seeds, one of them with weights, clusters and label counts."""
    folder = tmp_path_factory.mktemp("comparison")
    rng = np.random.default_rng(0)
    for seed in range(3):
        alone = list(rng.uniform(0.4, 0.6, 6))
        for method, lift in (("perm", 0.2), ("fedavg", -0.1 + 0.01 * seed)):
            ends = [[v + lift * k for v in alone] for k in (0.5, 1.0)]
            run = write_run(
                folder / method / f"seed-{seed}", method, seed, ends, alone,
                validation=[0.5, 0.6], shared=[0.5, 0.5],
            )  # fmt: skip
            _labels(run)
            if method == "perm":
                _inside(run)
    return folder


def _labels(run: Path) -> None:
    counts = {"client": range(6), "(group)": [0, 0, 0, 1, 1, 1], "cat": 5, "dog": range(6)}
    pd.DataFrame(counts).to_csv(run / "labels.csv", index=False)


def _inside(run: Path) -> None:
    weights = np.kron(np.eye(2), np.full((3, 3), 1 / 3))
    table = pd.DataFrame(weights)
    table.insert(0, "client", [str(i) for i in range(6)])
    table.to_csv(run / "mixing.csv", index=False)
    (run / "diagnostics").mkdir()
    clusters = pd.DataFrame([[1, -1, 0, 0, 1, 1, 1], [2, 0, 0, 0, 1, 1, 1]])
    clusters.columns = ["round", *map(str, range(6))]
    clusters.to_csv(run / "diagnostics" / "cluster.csv", index=False)
    rates = {"client": range(6), "0": [1.0, 0.5, 0.25] * 2}
    pd.DataFrame(rates).to_csv(run / "rates.csv", index=False)


@pytest.fixture(scope="module")
def page(comparison: Path) -> Path:
    write_report([comparison], comparison / "report.html", target=0.6)
    return comparison / "report.html"


def test_the_page_refers_to_nothing_outside_itself(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r'https?://[^"<\s]+', text)) <= NAMESPACES
    assert "<script" not in text
    references = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(found.startswith(("data:", "#")) for found in references)


def test_every_figure_has_its_text_alternative_and_its_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    figures = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
    names = set()
    for figure in figures:
        found = re.search(r'role="img" aria-labelledby="(\S+)-title (\S+)-words"', figure)
        assert found
        name = found[1]
        for part, tag in (("title", "title"), ("words", "desc")):
            inner = re.search(rf'<{tag} id="{name}-{part}">([^<]+)</{tag}>', figure)
            assert inner
            assert len(inner[1]) > 10
        names.add(name)
    folder = page.with_name("report_figures")
    for name in names:
        ET.parse(folder / f"{name}.svg")
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert len(pd.read_csv(folder / f"{name}.csv"))
    curves = {"accuracy-by-round", "accuracy-by-megabytes", "accuracy-by-seconds"}
    others = {"clients", "gain-1", "gain-2", "mixing-1", "clusters-1", "labels"}
    others |= {"capacity", "capacity-cost"}
    assert names == curves | others


def test_no_two_parts_of_the_page_share_an_id(page: Path) -> None:
    identifiers = re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8"))
    assert len(identifiers) == len(set(identifiers))


def test_figures_take_their_colours_from_the_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    svgs = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--ink)" in svgs
    assert "var(--s0)" in svgs
    assert "#1b1f24" not in svgs
    assert "prefers-color-scheme: dark" in text


def test_the_tables_say_what_the_runs_say(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "perm is better" in text
    assert "paired over 3 seeds" in text
    assert "3 of 3 seeds" in text  # perm reaches 0.6 in every seed
    table = pd.read_csv(page.with_name("report_figures") / "table.csv").set_index("label")
    clients = pd.read_csv(page.with_name("report_figures") / "clients.csv")
    means = clients.groupby("method")["accuracy"].mean()
    assert table["last"].to_dict() == pytest.approx(means.to_dict())
    assert table.loc["perm", "mean_gain"] == pytest.approx(0.2)
    assert table.loc["fedavg", "better_than_alone"] == 0


def test_weights_inside_planted_groups_are_told(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "100.0 % of the weight stays inside the planted groups" in text
    assert "33.3 % of its weight to itself and learns from 2.0 of 5 others" in text
    assert "Clusters of 3 and 3 clients at the end; the last change was in round 2" in text


def test_one_seed_is_reported_without_intervals_and_without_claims(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [[0.5, 0.7]], [0.4, 0.4])
    write_run(tmp_path / "b", "ditto", 0, [[0.6, 0.8]], [0.4, 0.4])
    write_report([tmp_path], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "This is one seed: what happened once." in text
    assert "no claim from one seed" in text
    assert "last only" in text
    assert "is better" not in text


def test_a_sweep_is_chosen_on_validation_and_only_the_choice_is_compared(tmp_path: Path) -> None:
    for lr, test, held in ((0.1, 0.9, 0.5), (0.2, 0.6, 0.7)):
        for seed in (0, 1):
            end = test + 0.01 * seed
            write_run(tmp_path / f"{lr} {seed}", "ditto", seed, [[end]], validation=[held], lr=lr)
    for seed in (0, 1):
        write_run(tmp_path / f"l {seed}", "local", seed, [[0.5 + 0.03 * seed]], validation=[0.5])
    found = findings([tmp_path])
    assert found.chosen == ["ditto lr=0.2", "local"]
    assert [(p.first, p.second) for p in found.pairs] == [("ditto lr=0.2", "local")]
    rows = result_rows(found.summaries, found.chosen, found.score)
    assert [row["method"] for row in rows] == ["ditto lr=0.1", "ditto lr=0.2 ✓", "local ✓"]
    # although other settings do better on test data, of which the choice knows nothing
    assert conclusions(found)[0].startswith("ditto lr=0.2: ")


def test_a_sweep_without_validation_singles_none_out(tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        write_run(tmp_path / str(lr), "ditto", 0, [[0.5]], lr=lr)
    found = findings([tmp_path])
    assert found.chosen == []
    assert "no validation data to choose by" in found.notes[0]
    assert conclusions(found) == [
        "Several settings of one method, none of them chosen: see the table."
    ]


def test_losses_are_reported_where_nothing_counts_as_correct(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [[1.0, 2.0]], [3.0, 1.0], score="loss")
    write_report([tmp_path], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Personal loss against rounds" in text
    assert "50 % of clients are better off" in text.replace("\u00a0", " ")


def test_many_clients_and_classes_are_drawn_small(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", "fedavg", 0, [[0.5] * 500])
    classes = {str(c): np.arange(500) % (c + 2) for c in range(30)}
    pd.DataFrame({"client": range(500), **classes}).to_csv(run / "labels.csv", index=False)
    drawing = label_histogram(Records(run))
    assert drawing is not None
    assert len(drawing.inline()) < 150_000
    assert shrunk(np.ones((1000, 1000))).shape == (400, 400)
    twice = np.repeat(np.arange(400.0), 2)[:, None]
    np.testing.assert_allclose(shrunk(twice)[:, 0], np.arange(400))


def test_weights_of_very_many_clients_are_counted_in_place_of_a_map(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "perm", 0, [[0.5] * 4], [0.5] * 4)
    pairs = {"client": [0, 0, 0, 1, 1, 2], "helper": [0, 1, 2, 1, 0, 2]}
    weights = {"weight": [0.4, 0.3, 0.3, 0.8, 0.2, 1.0]}
    pd.DataFrame({**pairs, **weights}).to_csv(run / "helpers.csv", index=False)
    chosen = {"client": range(4), "lam_rel": [1, 1, 1, np.inf], "home_steps": 0, "sure": 0.75}
    pd.DataFrame(chosen).to_csv(run / "sharing.csv", index=False)
    drawing = mixing_map(0, Group("perm", (Records(run),)))
    assert drawing is not None
    # client 2 learns from nobody, 1 from one other, 0 from two; 3 uses the one model for all
    assert drawing.numbers["clients"].tolist() == [1, 1, 1]
    assert "has all 6 weights" in drawing.words
    kept = shown((0.4 + 0.8 + 1.0) / 3, ACCURACY)
    assert f"The 3 that have weights of their own keep {kept}" in drawing.words
    assert "the one model for all: 1" in drawing.words


def test_capacities_are_averaged_by_rate(comparison: Path) -> None:
    group = Group("perm", (Records(comparison / "perm" / "seed-0"),))
    drawing = capacity_plot([group], ACCURACY)
    assert drawing is not None
    clients = group.runs[0].clients
    last = clients[clients["round"] == 20]["personal_accuracy"].to_numpy()
    table = drawing.numbers.set_index("rate")["mean"]
    assert table[0.25] == pytest.approx((last[2] + last[5]) / 2)
    drawing = capacity_cost_plot([group], ACCURACY)
    assert drawing is not None
    # clients 2 and 5 send 3 and 6 kB in every round
    assert drawing.numbers.set_index("rate")["megabytes"][0.25] == pytest.approx(0.0045)


def test_event_files_hold_the_metrics(comparison: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = Records(comparison / "fedavg" / "seed-0")
    for _ in range(2):  # a second time in place of the first
        folder = write_events(run)
    events = EventAccumulator(str(folder))
    events.Reload()
    found = events.Scalars("personal_accuracy")
    expected = run.metrics.dropna(subset="personal_accuracy")
    assert [e.step for e in found] == expected["round"].tolist()
    assert [e.value for e in found] == pytest.approx(expected["personal_accuracy"].tolist())
    assert found[1].wall_time - found[0].wall_time == pytest.approx(5)  # ten rounds of 0.5 s


def test_event_files_without_tensorboard_are_one_sentence(
    comparison: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedkin.reports.tensorboard.find_spec", lambda _: None)
    with pytest.raises(FedkinError, match=r"fedkin\[tensorboard\]"):
        write_events(Records(comparison / "fedavg" / "seed-0"))


def test_numbers_read_as_people_write_them() -> None:
    assert shown(0.8123, ACCURACY) == "81.2\u00a0%"
    assert points(-0.0001, ACCURACY) == "0.0"
    assert points(0.05, ACCURACY) == "+5.0"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a"]) == "a"
