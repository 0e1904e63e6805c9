"""Methods side by side: what is certainly not the best is told from what may be."""

from pathlib import Path

import numpy as np
import pytest

from fedkin.papers.beyond import ITEMS
from fedkin.papers.matrix import matrix_rows, maybe_best
from fedkin.papers.outcome import Outcome
from tests.papers.helpers import LINES, item, panel


def seeds(*values):
    return dict(enumerate(values))


def test_the_best_and_what_seeds_cannot_tell_from_it():
    found = {
        "good": seeds(90.0, 91.0, 92.0, 93.0),
        "alike": seeds(90.5, 90.4, 92.6, 92.0),
        "bad": seeds(80.0, 81.1, 81.9, 83.0),
        "diverged": seeds(99.0, 99.0, 99.0, float("nan")),
    }
    assert maybe_best(found) == {"good", "alike"}
    assert maybe_best({"diverged": found["diverged"]}) == set()
    # the same difference with every seed is certain, one seed is not
    assert maybe_best({"a": seeds(2.0, 3.0), "b": seeds(1.0, 2.0)}) == {"a"}
    assert maybe_best({"a": seeds(2.0), "b": seeds(1.0)}) == {"a", "b"}


def test_equal_lines_are_seldom_told_apart():
    # nine lines without any difference: in at most 5 % of tables may one be called worse
    random = np.random.default_rng(3)
    wrong = 0
    for _ in range(100):
        lines = {str(i): seeds(*random.normal(size=6)) for i in range(9)}
        wrong += len(maybe_best(lines)) < 9
    assert wrong <= 5


def test_a_matrix_has_a_row_per_line_and_a_column_per_panel():
    what = item(panel(), panel("more", lines=LINES[:1]), matrix=True)
    values = {
        ("digits", "FedAvg", "accuracy"): seeds(91.0, 92.0, 93.0),
        ("digits", "pFedKM K=2", "accuracy"): seeds(81.1, 82.0, 82.9),
        ("more", "FedAvg", "accuracy"): seeds(float("nan")),
    }
    made = Outcome("paper", what, "small", Path(), what.panels, (), values, {}, 1.0, (3,), "")
    assert matrix_rows(made) == [
        {"line": "FedAvg", "Digits, digits": "**92.00**", "Digits, more": "diverged"},
        {"line": "pFedKM K=2", "Digits, digits": "82.00", "Digits, more": "—"},
    ]


@pytest.mark.parametrize("what", ITEMS, ids=lambda item: item.name)
def test_beyond_has_no_options_but_sizes_and_all_data_at_small_scale(what):
    assert what.matrix
    assert what.seeds["small"] >= 10
    for one in what.panels:
        assert {key for line in one.lines for key in line.options} <= {"rates"}
        small = one.at("small")
        few = "digits" in one.name or one.name == "heart-disease"
        assert small.rounds == (one.rounds if few else one.rounds // 2)
