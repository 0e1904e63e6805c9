"""Results by the metric that fits: numbers, unbalanced classes, users' functions, one alone."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedkin.errors import FedkinError
from fedkin.methods import FedAvg
from fedkin.runs.stored import open_run
from fedkin.runs.train import train
from tests.helpers import blobs, least_squares

QUICK = ("--rounds", 10, "--eval-every", 5, "--model", "linear", "-q")


def scores_table(path: Path, unbalanced: bool = False) -> Path:
    """Schools that differ by a level of their own: scores around 554, or 5 % of failures."""
    g = np.random.default_rng(0)
    n = 600
    school, x = g.integers(1, 9, n), g.normal(size=(n, 2))
    level = x @ [0.8, -0.4] + g.normal(size=9)[school] * 0.4
    y = level + 0.4 * g.normal(size=n)
    target = (y > np.quantile(y, 0.95)) * 1 if unbalanced else (554 + 66 * y).round(1)
    frame = pd.DataFrame({"school": school, "a": x[:, 0], "b": x[:, 1], "target": target})
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on targets with mean 554 and deviation 66."""
    from fedkin.command import runs as commands
    from fedkin.runs.config import make_config

    place = tmp_path_factory.mktemp("data")
    data = {"name": str(scores_table(place / "scores.csv")), "client_column": "school"}
    config = make_config({"method": "fedavg", "rounds": 20, "data": data,
                          "model": {"name": "linear"}, "strategy": "stacked"})  # fmt: skip
    commands.begin(config, config.make_data(), place / "run").run()
    return place / "run"


def test_numbers_have_results_in_their_own_units(regression, fedkin):
    run = open_run(regression)
    end = run.metrics.iloc[-1]
    deviation = pd.read_csv(regression.parent / "scores.csv")["target"].std()
    assert 0.2 * deviation < end["personal_rmse"] < 0.9 * end["trivial_rmse"]
    assert end["trivial_rmse"] == pytest.approx(deviation, rel=0.2)
    assert 0.3 < end["personal_r2"] < 1
    assert run.score == end["personal_rmse"]
    with pytest.raises(FedkinError, match="no accuracy; it has rmse"):
        _ = run.accuracy
    assert end["worst_tenth"] > end["personal_rmse"] > end["best"]
    found = fedkin("predict", regression, regression.parent / "scores.csv", "--client", "3").out
    said = np.array([float(line.split(",")[1]) for line in found.splitlines()[1:]])
    truth = pd.read_csv(regression.parent / "scores.csv")["target"]
    assert np.corrcoef(said, truth)[0, 1] > 0.7
    assert said.mean() == pytest.approx(truth.mean(), rel=0.05)
    assert "%" not in fedkin("runs", regression.parent).out.split("metric")[1].split("alone")[0]


def test_unbalanced_classes_show_more_than_their_share(tmp_path, fedkin):
    data = scores_table(tmp_path / "fail.csv", unbalanced=True)
    said = fedkin("run", "fedavg", "--data", data, "--client-column", "school", *QUICK,
                  "--out", tmp_path / "run")  # fmt: skip
    assert said.code == 0, said.err
    assert "AUC" in said.out
    assert "trivial answer" in said.out
    end = open_run(tmp_path / "run").metrics.iloc[-1]
    assert end["trivial_accuracy"] > 0.9
    assert end["trivial_balanced_accuracy"] < 0.7  # 1 where only one class is tested
    assert end["personal_auc"] > 0.75


def test_all_rows_of_a_comparison_are_held_to_one_alone(tmp_path, fedkin):
    data = scores_table(tmp_path / "scores.csv")
    said = fedkin("compare", "fedavg", "--data", data, "--client-column", "school",
                  "--sweep", "lr=0.00001,0.1", *QUICK[:-1], "--out", tmp_path / "c")  # fmt: skip
    assert said.code == 0, said.err
    assert "alone: local training with lr 0.1" in " ".join(said.out.split())
    rows = pd.read_csv(tmp_path / "c" / "table.csv").set_index("method")
    slow, fast = rows.loc["fedavg-lr=0.00001"], rows.loc["fedavg-lr=0.1"]
    assert slow["better"] == 0
    assert slow["worse"] > max(0.7, fast["worse"])
    assert slow[["better", "same", "worse"]].sum() == pytest.approx(1)
    assert slow["gain_high"] < 0
    assert "±" in said.out


def test_the_mean_gain_has_the_paired_t_interval_over_clients(tmp_path, fedkin):
    data = scores_table(tmp_path / "scores.csv")
    said = fedkin("compare", "local", "fedavg", "--data", data, "--client-column", "school",
                  *QUICK[:-1], "--out", tmp_path / "c")  # fmt: skip
    assert said.code == 0, said.err
    row = pd.read_csv(tmp_path / "c" / "table.csv").set_index("method").loc["fedavg"]
    ends = [
        run.clients[run.clients["round"] == run.clients["round"].max()].set_index("client")
        for run in (open_run(path) for path in sorted((tmp_path / "c").glob("*/seed-0")))
    ]
    own, alone = (end["personal_rmse"] for end in ends)
    expected = stats.ttest_rel(alone, own[alone.index])  # less is better
    low, high = expected.confidence_interval(0.95)
    assert row["gain"] == pytest.approx((alone - own).mean())
    assert (row["gain_low"], row["gain_high"]) == (pytest.approx(low), pytest.approx(high))


def test_a_method_worse_than_a_constant_is_warned_about(tmp_path, fedkin):
    data = scores_table(tmp_path / "scores.csv")
    said = fedkin("run", "fedavg", "--data", data, "--client-column", "school", *QUICK,
                  "--lr", "1e-7", "--no-baseline", "--seed", 1,
                  "--out", tmp_path / "run")  # fmt: skip
    assert "warning: fedavg does not beat the trivial answer" in " ".join(said.out.split())


def test_a_users_function_decides(tmp_path, fedkin):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def within_30(targets, predictions):\n"
        "    return float((np.abs(targets - predictions) < 30).mean())\n"
    )
    data = scores_table(tmp_path / "scores.csv")
    metric = f"{tmp_path / 'mine.py'}:within_30,mae"
    said = fedkin("run", "fedavg", "--data", data, "--client-column", "school", *QUICK,
                  "--metric", metric, "--out", tmp_path / "r")  # fmt: skip
    assert said.code == 0, said.err
    run = open_run(tmp_path / "r")
    assert [measure.name for measure in run.measures][:2] == ["mine.within_30", "mae"]
    assert 0 < run.score < 1


def test_functions_in_python_see_classes_and_probabilities():
    from fedkin.core.problem import Problem
    from fedkin.models import build

    def own_log_loss(targets, predictions, probabilities):
        assert probabilities.shape == (len(targets), 3)
        return -np.log(probabilities[np.arange(len(targets)), targets]).mean()

    own_log_loss.higher_is_better = False
    problem = Problem(build("linear", (5,), 3), blobs())
    run = train(problem, FedAvg(), rounds=2, metric=[own_log_loss, "log_loss"], baseline=False)
    end = run.metrics.iloc[-1]
    assert end["personal_own_log_loss"] == pytest.approx(end["personal_log_loss"])
    assert end["worst_tenth"] >= end["best"]


def test_metrics_that_do_not_fit_are_refused(fedkin):
    said = fedkin("run", "fedavg", "--metric", "acuracy")
    assert (said.code, "did you mean 'accuracy'" in said.err) == (2, True)
    with pytest.raises(FedkinError, match="is for targets that are classes"):
        train(least_squares(), FedAvg(), rounds=1, metric="auc")

    def by_columns(targets, predictions):
        return predictions.mean(5)

    with pytest.raises(FedkinError, match=r"metric 'by_columns' fails: .*axis 5.*numpy arrays"):
        train(least_squares(), FedAvg(), rounds=1, metric=by_columns, baseline=False)
