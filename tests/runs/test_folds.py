"""Cross-validation: every row is tested once, and folds count as one test set."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import r2_score, root_mean_squared_error

import fedkin
from fedkin.command import folds as command
from fedkin.command.runs import resume
from fedkin.data import DataConfig, load
from fedkin.errors import FedkinError
from fedkin.runs.comparison import execute, fold_tasks, plan
from fedkin.runs.config import RunConfig, make_config
from fedkin.runs.fold_scores import add_up, read_scores
from fedkin.runs.groups import find_runs
from fedkin.runs.listing import find_runs as listed
from fedkin.runs.provenance import complete
from fedkin.runs.tasks import Watch, perform

SIZES = {"a": 23, "b": 11, "c": 4}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers far from zero, at sites of few rows."""
    rng, rows = np.random.default_rng(0), []
    for site, size in SIZES.items():
        x = rng.normal(size=(size, 2))
        y = 500 + 40 * x[:, 0] + rng.normal(size=size) * 20 + (site == "b") * 30
        rows.append(pd.DataFrame({"site": site, "u": x[:, 0], "v": x[:, 1], "y": y}))
    path = tmp_path_factory.mktemp("folds") / "table.csv"
    pd.concat(rows).to_csv(path, index=False)
    return path


def config_of(table: Path, method: str = "fedavg", **data: object) -> RunConfig:
    columns = {"client_column": "site", "target_column": "y"}
    values = {"name": str(table), "test": "folds:5", **columns, **data}
    return make_config(
        {"method": method, "rounds": 4, "eval_every": 2, "data": values,
         "model": {"name": "linear"}, "metric": ["r2", "rmse"]}
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(table: Path) -> Path:
    """A run that was stopped after two of its folds, and went on."""
    out, config = table.parent / "run", config_of(table)
    folded = fold_tasks("fedavg", out, config, lambda own: own.make_data(), complete)
    watch = Watch(lambda label: None, threading.Event())
    assert not perform(folded.tasks[:2], watch)
    assert not folded.finish()
    assert len(folded.left) == 3
    resume(out, quiet=True)
    return out


def test_pooled_scores_are_those_of_all_rows_by_the_model_that_did_not_see_them(
    table: Path, run: Path
) -> None:
    truth: dict[str, list[float]] = {site: [] for site in SIZES}
    answer: dict[str, list[float]] = {site: [] for site in SIZES}
    for fold in range(1, 6):
        data = load(config_of(table, fold=fold).data, 0)
        models = fedkin.open_run(run / "folds" / f"fold-{fold}").personal
        mean, deviation = data.preparation.target or (0, 1)
        for i, site in enumerate(data.names):
            own = slice(*data.test.offsets[i : i + 2].tolist())
            with torch.no_grad():
                said = models[site](data.test.x[own])[:, 0]
            answer[site] += (said * deviation + mean).tolist()
            truth[site] += (data.test.y[own] * deviation + mean).flatten().tolist()
    clients = pd.read_csv(run / "clients.csv")
    last = clients[clients["round"] == 4].set_index("client")
    assert last["test_samples"].to_dict() == SIZES
    for site in SIZES:
        r2 = r2_score(truth[site], answer[site])
        rmse = root_mean_squared_error(truth[site], answer[site])
        assert last.loc[site, "personal_r2"] == pytest.approx(r2, rel=1e-4)
        assert last.loc[site, "personal_rmse"] == pytest.approx(rmse, rel=1e-4)
    metrics = pd.read_csv(run / "metrics.csv")
    assert metrics["round"].tolist() == [1, 2, 3, 4]
    assert metrics["personal_rmse"].iloc[-1] == pytest.approx(last["personal_rmse"].mean())
    assert metrics["personal_rmse"].notna().tolist() == [False, True, False, True]


def test_noise_is_that_of_all_rows_even_if_a_fold_has_one(table: Path, run: Path) -> None:
    """A mean's resampled deviation is s/sqrt(n), whatever folds its rows are in."""
    kept = [read_scores(run / "folds" / f"fold-{k}", 4)["personal"] for k in range(1, 6)]
    pooled = add_up(kept, [0.0] * 5)
    squares, n = pooled.sums["rmse"].T
    drawn = pooled.resampled["rmse"].square()
    own = torch.stack([fold.sums["rmse"][:, 0] for fold in kept])[:, 2]  # c: a row a fold, but one
    spread = (own[own > 0] - squares[2] / n[2]).square().mean().sqrt() / n[2].sqrt()
    assert float(drawn[2].nan_to_num(float(squares[2] / n[2])).std()) == pytest.approx(
        float(spread), rel=0.5
    )


def test_folds_in_lockstep_equal_folds_alone_and_are_one_run(table: Path, tmp_path: Path) -> None:
    base = config_of(table).model_dump(exclude={"method", "seed", "options", "files"})
    entries = plan("fedavg", base, [0], {})
    errors = execute(entries, tmp_path, complete, lambda label: None, threading.Event())
    assert not errors
    (found,) = find_runs([tmp_path])
    assert found.finished
    assert len(listed(tmp_path)) == 1
    alone = config_of(table, fold=2)
    trained = fedkin.train(
        alone.make_problem(alone.make_data()), alone.make_method(), rounds=4, metric=["rmse"]
    )
    ours = pd.read_csv(found.path / "folds" / "fold-2" / "clients.csv")
    ours = ours[ours["round"] == 4]
    theirs = trained.clients[trained.clients["round"] == 4]
    np.testing.assert_allclose(ours["personal_rmse"], theirs["personal_rmse"], rtol=1e-4)


def test_a_run_of_folds_has_no_single_model(run: Path) -> None:
    with pytest.raises(FedkinError, match="models for each fold"):
        fedkin.open_run(run).personal["a"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"time_column": "u"}, "time_column asks for later ones"),
        ({"test_per_client": 2}, "test_per_client = 2"),
        ({"fold": 6}, "more than the 5"),
        ({"test": "folds:1"}, "folds:1"),
        ({"test_fraction": 0.5}, "test_fraction = 0.5 asks for something else"),
        ({"test": None, "fold": 1}, "needs the number of folds"),
    ],
)
def test_what_does_not_go_with_folds_is_refused(table: Path, data: dict, said: str) -> None:
    with pytest.raises(FedkinError, match=said):
        config_of(table, **data)


def test_one_split_of_several_must_be_named(table: Path) -> None:
    with pytest.raises(FedkinError, match="5 splits and not one"):
        load(config_of(table).data, 0)
    config = config_of(table).model_copy(update={"engine": "flower"})
    with pytest.raises(FedkinError, match="computes no folds"):
        command.run(config, table.parent / "elsewhere", quiet=True)
    config = config_of(table).model_copy(update={"patience": 2})
    with pytest.raises(FedkinError, match="leave patience out"):
        command.run(config, table.parent / "elsewhere", quiet=True)
    named = DataConfig(name="digits", test="folds:3", fold=3)
    assert len(load(named, 0).test.y) == pytest.approx(1797 / 3, rel=0.05)
