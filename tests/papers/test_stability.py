"""The stability experiment of the sub-model paper."""

import numpy as np
import pytest
import torch

from fedkin.methods import SubmodelMasks
from fedkin.papers.claims import Verdict, judge
from fedkin.papers.stability import logistic_data, other_sample, stability, trained
from fedkin.papers.submodel import STABILITY


@pytest.fixture(scope="module")
def table():
    return stability(seed=0, pairs=4, rounds=6, kind="random")


def test_with_fewer_coordinates_models_move_less_but_not_for_the_way_they_have_come(table):
    by = {name: [found[name] for found in table.values()] for name in table["rate 1"]}
    assert by["distance"] == sorted(by["distance"], reverse=True)
    assert by["distance"][0] > 1.5 * by["distance"][3] > 0
    assert by["equal_steps"][0] == by["distance"][0]
    assert by["equal_steps"][3] > by["equal_steps"][0]
    assert by["relative"][3] > by["relative"][0]


def test_the_three_measures_are_of_the_same_runs(table):
    random = np.random.default_rng(0)
    data = logistic_data(random)
    changed = [other_sample(data, random) for _ in range(4)]
    method = SubmodelMasks(rates=(0.5,), kind="random", lr=0.02, local_steps=5)
    model, others = (trained(d, method, (6, 12), 0) for d in (data, changed[0]))
    assert table["rate 1/2"]["relative"] == pytest.approx(
        table["rate 1/2"]["distance"] / model[0].norm().item()  # logistic models start at zero
    )
    assert not torch.equal(model, others)


def test_only_the_theorems_own_claim_holds(table):
    values = {
        (panel.name, line, name): {seed: value * (1 + 1e-3 * seed) for seed in range(3)}
        for panel in STABILITY.panels
        for line, found in table.items()
        for name, value in found.items()
    }
    verdicts = [judge(claim, values).verdict for claim in STABILITY.claims]
    assert verdicts == [Verdict.HOLDS, Verdict.FAILS, Verdict.FAILS]
