"""Runs with differential privacy: what they leave behind, when they end, what they refuse."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods import Ditto, Perm
from fedkin.methods.registry import all_methods, get_method
from fedkin.reports.write import _privacy
from fedkin.runs import checks
from fedkin.runs.accounting import Sampling, epsilon
from fedkin.runs.config import make_config
from fedkin.runs.folder import RunFolder
from fedkin.runs.groups import Group, Records
from fedkin.runs.options import parse
from fedkin.runs.privacy import make_guarantee
from fedkin.runs.privacy_file import ended_by_budget, guarantee_in_words, read_privacy
from fedkin.runs.settings import Settings
from fedkin.runs.train import train
from fedkin.runs.training import Trainer

PRIVATE: dict[str, Any] = {
    "rounds": 6, "eval_every": 3, "checkpoint_every": 2, "baseline": False, "seed": 3,
    "fraction": 0.6, "strategy": "stacked", "sampling": "poisson", "dp_clip": 0.5, "dp_noise": 1.5,
    "dp_quantile": 0.5,
}  # fmt: skip


def private_run(folder: Path | None = None, **more: Any) -> Any:
    method = Ditto(lr=0.05, local_steps=3)
    return train(checks.problem(), method, folder=folder, **{**PRIVATE, **more})


def test_a_folder_tells_the_guarantee_and_a_round_its_epsilon(tmp_path: Path) -> None:
    private_run(tmp_path / "run")
    told = read_privacy(tmp_path / "run")
    assert told is not None
    table = pd.read_csv(tmp_path / "run" / "metrics.csv")
    spent = [epsilon({(1, 0): t}, 1.5, Sampling("poisson", 0.6, 3, 5), 1e-5) for t in range(1, 7)]
    assert table["dp_epsilon"].tolist() == pytest.approx(spent)
    assert told["epsilon"] == pytest.approx(spent[-1])
    assert told["adjacency"] == "add or remove one client"
    assert told["rounds"] == [{"sums": 1, "rows": 0, "rounds": 6}]
    assert "not secret" in told["generator"]
    assert {"dp_snr", "dp_clip", "dp_unclipped"} <= set(table)
    assert f"Epsilon {spent[-1]:.3g} at delta 1e-05" in guarantee_in_words(told)


def test_a_private_run_resumes_exactly(tmp_path: Path) -> None:
    """Noise, limit and account go on as if nothing had happened."""
    whole = private_run(tmp_path / "whole")
    about = Trainer(checks.problem(), Ditto(lr=0.05, local_steps=3), Settings(**PRIVATE),
                    RunFolder.create(tmp_path / "cut", "method = 'ditto'\n"))  # fmt: skip
    about.run(lambda progress: setattr(about, "stopping", progress.round == 3))
    assert about.folder is not None
    about.folder.close()
    again = private_run(tmp_path / "cut", resume=True)
    states = [r.trainer.contenders["method"] for r in (whole, again)]
    assert torch.equal(states[0].state.x, states[1].state.x)
    assert states[0].fed.privacy.facts() == states[1].fed.privacy.facts()
    for name in ("privacy.json", "metrics.csv"):
        assert (tmp_path / "whole" / name).read_text() == (tmp_path / "cut" / name).read_text()


def test_a_run_ends_when_its_budget_is_spent(tmp_path: Path) -> None:
    """The last round is evaluated and its models are written, as any last round."""
    spent = epsilon({(1, 0): 4}, 1.5, Sampling("poisson", 0.6, 3, 5), 1e-5)
    run = private_run(tmp_path / "run", dp_epsilon=spent * 1.001)
    table = pd.read_csv(tmp_path / "run" / "metrics.csv")
    assert table["round"].tolist() == [1, 2, 3, 4]
    assert table["dp_epsilon"].iloc[-1] <= spent * 1.001
    assert run.trainer.done
    assert table["personal_accuracy"].notna().iloc[-1]
    assert (tmp_path / "run" / "models").is_dir()
    assert ended_by_budget(tmp_path / "run")


def test_noise_is_found_for_an_epsilon() -> None:
    run = private_run(dp_noise=None, dp_epsilon=5.0)
    assert run.trainer.round == 6
    assert 4.8 < run.metrics["dp_epsilon"].iloc[-1] <= 5


def test_a_round_that_was_begun_and_lost_counts_with_secret_noise(tmp_path: Path) -> None:
    """Repeated with new noise, a round is released twice."""

    class Deployed(Trainer):
        secret_noise = True

    def trainer(folder: RunFolder) -> Trainer:
        return Deployed(checks.problem(), Ditto(lr=0.05), Settings(**PRIVATE), folder)

    first = trainer(RunFolder.create(tmp_path / "run", "method = 'ditto'\n"))
    first.run(lambda progress: setattr(first, "stopping", progress.round == 3))
    assert first.folder is not None
    first.folder.close()  # round 3 is lost: the last checkpoint is of round 2
    again = trainer(RunFolder.open(tmp_path / "run"))
    again.resume()
    again.run()
    told = read_privacy(tmp_path / "run")
    assert told is not None
    assert sum(kind["rounds"] for kind in told["rounds"]) == 7
    assert told["generator"] == "os.urandom"


def test_methods_are_refused_by_name_with_the_reason() -> None:
    for name, cls in all_methods().items():
        method = checks.make(cls)
        if cls.not_private:
            with pytest.raises(FedkinError, match=f"'{name}' cannot be made differentially"):
                make_guarantee(Settings(**PRIVATE), 5, 3, method, False)
        else:
            assert make_guarantee(Settings(**PRIVATE), 5, 3, method, False) is not None
    refused = {name for name, cls in all_methods().items() if cls.not_private}
    assert {"ifca", "pfedkm", "submodel", "cfl", "fedfomo", "pfedhn"} <= refused
    allowed = {"fedavg", "fedavg-local", "ditto", "pfedme", "apfl", "feddeper", "fedper", "fedrep"}
    assert not allowed & refused


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"dp_clip": None}, "needs dp_clip"),
        ({"dp_noise": None}, "dp_clip has no effect without noise"),
        ({"aggregate": "median"}, "does not go with differential privacy"),
        ({"patience": 3}, "leave patience out"),
        ({"dp_epsilon": 1e-3}, "does not last for one round"),
        ({"dp_delta": 2.0}, "dp_delta must be above 0 and below 1"),
        ({"dp_clip": -1.0}, "dp_clip must be above 0"),
        ({"dp_clip": "dx=a"}, "write a number, or one for each tensor"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(FedkinError, match=words):
        make_guarantee(Settings(**{**PRIVATE, **more}), 5, 3, Ditto(), False)


def test_weights_without_a_limit_are_refused_before_the_first_round() -> None:
    with pytest.raises(FedkinError, match="give dp_most_samples"):
        make_guarantee(Settings(**PRIVATE), 5, 3, Ditto(weighted=True), False)
    bounded = Settings(**PRIVATE, dp_most_samples=10)
    assert make_guarantee(bounded, 5, 3, Ditto(weighted=True), False) is not None
    with pytest.raises(FedkinError, match="counts every client once"):
        Trainer(checks.problem(), Ditto(weighted=True), Settings(aggregate="median"))


def test_options_reach_the_run() -> None:
    words = ["--dp-clip", "dx=1,dc=0.5", "--dp-epsilon=3", "--dp-delta=1e-6", "--dp-cohort=1000"]
    words += ["--dp-quantile=0.5", "--sampling=poisson", "--dp-most-samples=100"]
    config = make_config({"method": "scaffold", **parse("scaffold", words)})
    s = config.settings()
    assert s.dp_clip == {"dx": 1.0, "dc": 0.5}
    assert (s.dp_epsilon, s.dp_delta, s.dp_cohort, s.dp_quantile) == (3, 1e-6, 1000, 0.5)
    assert s.sampling == "poisson"
    assert s.dp_most_samples == 100
    assert make_config({"method": "fedavg", "aggregate": "trimmed:0.1"}).settings().aggregate
    with pytest.raises(FedkinError, match="did you mean 'median'"):
        make_config({"method": "fedavg", "aggregate": "medain"})


def test_perm_sends_rows_with_noise_of_their_own() -> None:
    """Gradients and visits are accounted for one by one, and not hidden by sampling."""
    method = Perm(lr=0.05, local_steps=2, warm_up=1, lam_rel=1.0)
    run = train(checks.problem(), method, rounds=4, baseline=False, strategy="stacked",
                dp_clip=0.5, dp_noise=20.0, dp_delta=1e-5)  # fmt: skip
    kinds = run.trainer.guarantee.privacy.rounds
    assert kinds[1, 0] == 1
    assert sum(kinds.values()) == 4
    everybody = Sampling("all", 1.0, 5, 5)
    assert run.metrics["dp_epsilon"].iloc[-1] == pytest.approx(
        epsilon(kinds, 20.0, everybody, 1e-5)
    )


@pytest.mark.parametrize("name", ["ifca", "perm", "submodel", "local"])
def test_robust_means_are_refused_where_nothing_is_averaged(name: str) -> None:
    how = Settings(aggregate="median")
    with pytest.raises(FedkinError, match=f"'{name}' takes no aggregate"):
        Trainer(checks.problem("mlp:8"), checks.make(get_method(name)), how)


def test_clipping_alone_promises_nothing(tmp_path: Path) -> None:
    private_run(tmp_path / "run", dp_noise=0.0, dp_quantile=None)
    told = read_privacy(tmp_path / "run")
    assert told is not None
    assert told["epsilon"] is None
    assert "no privacy guarantee" in guarantee_in_words(told)
    (tmp_path / "run" / "privacy.json").write_text("[")
    with pytest.raises(FedkinError, match="is damaged"):
        read_privacy(tmp_path / "run")


def test_statistics_of_norms_are_not_given_away() -> None:
    data = checks.problem("mlp-norm:4").data
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, checks.CLASSES))
    private = Settings(**PRIVATE)
    with pytest.raises(FedkinError, match="norm = averaged gives every client the exact mean"):
        Trainer(Problem(model, data, batch_size=6, norm="averaged"), Ditto(), private)
    local = Trainer(Problem(model, data, batch_size=6, norm="local"), Ditto(), private)
    assert local.guarantee is not None
    assert "statistics of batch norms" in local.guarantee.facts()["outside"][-1]


def test_a_report_has_a_section_on_privacy(tmp_path: Path) -> None:
    private_run(tmp_path / "run")
    run = Records(tmp_path / "run")
    page = "".join(_privacy(SimpleNamespace(groups=[Group("ditto", (run,))])))  # type: ignore[arg-type]
    assert "ditto: Epsilon" in page
    assert "the server adds the noise and is trusted" in page
    assert "Outside the guarantee" in page
