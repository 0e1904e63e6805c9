"""Recipes: complete, faithful to what was printed, and run without being told more."""

import pandas as pd
import pytest
import torch

from fedkin.config import RunConfig
from fedkin.models import build
from fedkin.papers import PAPERS, Line, Recipe
from fedkin.papers.reproduce import accuracy, reproduce

ALL = [(paper, item) for paper, items in PAPERS.items() for item in items]


@pytest.mark.parametrize(("paper", "item"), ALL)
def test_every_recipe_gives_checked_configs_with_folders_of_their_own(paper, item):
    recipe = PAPERS[paper][item]
    entries = recipe.entries(2)
    assert len({(entry.label, entry.seed) for entry in entries}) == 2 * len(recipe.lines)
    for entry in entries:
        assert isinstance(entry.config, RunConfig)
        entry.config.make_method()
        assert build(entry.config.model.name, (3, 32, 32), 10)


def test_the_cnn_of_feddeper_has_small_kernels():
    net = build(PAPERS["feddeper"]["table1-mnist-cnn-a-m5"].run["model"]["name"], (1, 28, 28), 10)
    shapes = [tuple(p.shape) for p in net.parameters() if p.dim() > 1]
    assert shapes[:2] == [(32, 1, 3, 3), (64, 32, 3, 3)]
    assert [shape[0] for shape in shapes[2:]] == [1024, 512, 10]


def test_accuracy_counts_test_samples_of_the_last_evaluation(tmp_path):
    pd.DataFrame(
        {
            "round": [1, 1, 2, 2],
            "personal_accuracy": [0.0, 0.0, 1.0, 0.5],
            "global_accuracy": [None] * 4,
            "test_samples": [30, 10, 30, 10],
        }
    ).to_csv(tmp_path / "clients.csv")
    assert accuracy(tmp_path, "personal") == pytest.approx(100 * (30 + 5) / 40)
    assert accuracy(tmp_path, "global") != accuracy(tmp_path, "global")  # no global model: NaN


def test_a_table_is_run_once_and_then_read(tmp_path):
    lines = (
        Line("FedAvg", "fedavg", {"lr": 0.1}, 90.0),
        Line("pFedKM K=2", "pfedkm", {"clusters": 2}),
    )
    run = {
        "data": {"name": "digits", "num_clients": 4},
        "model": {"name": "linear"},
        "rounds": 3,
        "baseline": False,
    }
    recipe = Recipe("digits", run, lines, "global")
    rounds = []
    first = reproduce(recipe, tmp_path, 2, rounds.append)
    assert sorted(rounds) == ["fedavg"] * 6 + ["pfedkm-k=2"] * 6
    assert reproduce(recipe, tmp_path, 2, rounds.append)[0] == first[0]
    assert len(rounds) == 12
    table = pd.read_csv(tmp_path / "table.csv", index_col="method")
    assert table.loc["FedAvg", "global"] == pytest.approx(
        torch.tensor(first[0].accuracy["global"]).double().mean().item()
    )
    assert pd.isna(table.loc["pFedKM K=2", "global"])
    assert table.loc["pFedKM K=2", "personal"] > 20
