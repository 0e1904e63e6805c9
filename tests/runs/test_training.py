"""The run: what is evaluated is what is saved, and what is resumed is what was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedkin.core.federation import Federation, Request
from fedkin.core.problem import Problem
from fedkin.errors import DivergedError, FedkinError
from fedkin.methods import FedAvg, LocalizedFedAvg, Method, Scaffold, State
from fedkin.methods.base import use
from fedkin.models import build
from fedkin.runs.folder import RunFolder
from fedkin.runs.models import load_model
from fedkin.runs.settings import Settings
from fedkin.runs.train import train
from fedkin.runs.training import Trainer
from tests.helpers import blobs, least_squares

QUICK = Settings(rounds=4, eval_every=2, checkpoint_every=2, strategy="native:3:1x1")


@pytest.fixture
def problem() -> Problem:
    return Problem(build("mlp:8", (5,), 3, seed=1), blobs(), batch_size=6)


def trainer(problem: Problem, path: Path, method: Method | None = None) -> Trainer:
    """In a folder that is new, or goes on."""
    begun = (path / "config.toml").exists()
    folder = RunFolder.open(path) if begun else RunFolder.create(path, 'method = "any"\n')
    return Trainer(problem, method or Scaffold(lr=0.05, local_steps=3), QUICK, folder)


def test_the_models_saved_are_the_models_evaluated(problem: Problem, tmp_path: Path) -> None:
    """Also where each client adapts its model by random steps before it uses it."""
    run = train(problem, LocalizedFedAvg(lr=0.1), rounds=2, folder=tmp_path / "run")
    for client in range(problem.num_clients):
        _, vector = load_model(tmp_path / "run" / "models", problem, client, str(client))
        x, y = problem.data.test[client]
        for module in (problem.module(vector), run.personal[client]):
            loss = torch.nn.functional.cross_entropy(module(x), y).item()
            assert loss == pytest.approx(run.clients["personal_loss"].iloc[client], rel=1e-5)


def test_tables_have_a_row_per_round_and_per_client_and_evaluation(problem: Problem) -> None:
    run = Trainer(problem, FedAvg(lr=0.1), QUICK).run()
    assert list(run.metrics["round"]) == [1, 2, 3, 4]
    assert list(run.metrics["personal_accuracy"].notna()) == [False, True, False, True]
    assert list(run.clients["round"]) == [2] * 6 + [4] * 6
    last = run.clients[run.clients["round"] == 4]
    assert run.accuracy == pytest.approx(last["personal_accuracy"].mean())
    assert list(last["gradients"]) == [40] * 6
    gain = last["personal_accuracy"] - last["local_accuracy"]
    assert last["gain"].to_numpy() == pytest.approx(gain.to_numpy())
    shares = [(gain > last["noise"]).mean(), (gain < -last["noise"]).mean()]
    end = run.metrics.iloc[-1]
    assert [end["better_than_alone"], end["worse_than_alone"]] == pytest.approx(shares)
    assert end["same_as_alone"] == pytest.approx(1 - sum(shares))
    assert list(run.timing["round"]) == [1, 2, 3, 4]


def test_without_a_baseline_nothing_is_trained_beside(problem: Problem) -> None:
    run = train(problem, "fedavg", rounds=2, baseline=False)
    assert list(run.trainer.contenders) == ["method"]
    assert run.clients["local_accuracy"].isna().all()


@dataclass
class Chatty(FedAvg):
    """Leaves diagnostics of every kind."""

    name = "chatty"

    def init(self, fed: Federation) -> State:
        return State(x=fed.initial_model(), turned=torch.zeros(2, 3), count=0)

    def round(self, fed: Federation, s: State) -> None:
        super().round(fed, s)
        s.count += 1
        s.turned = torch.arange(6.0).view(3, 2).T * s.count
        fed.record(count=s.count, row=s.turned[0], work_seconds=0.5)
        if s.count > 2:
            fed.record(late=float("nan") if s.count == 3 else 1.5)


def test_diagnostics_go_to_tables_and_clocks_apart_from_them(
    problem: Problem, tmp_path: Path
) -> None:
    run = trainer(problem, tmp_path / "run", Chatty()).run()
    assert list(run.metrics["count"]) == [1, 2, 3, 4]
    assert list(run.metrics["late"].isna()) == [True, True, True, False]
    assert "work_seconds" not in run.metrics
    assert list(run.timing["work_seconds"]) == [0.5] * 4
    rows = (tmp_path / "run" / "diagnostics" / "row.csv").read_text()
    assert rows == "round,0,1,2\n1,0.0,2.0,4.0\n2,0.0,4.0,8.0\n3,0.0,6.0,12.0\n4,0.0,8.0,16.0\n"
    head, *lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert head.endswith("not_finite,count,late")
    assert [line.split(",")[-1] for line in lines] == ["", "", "", "1.5"]


def test_state_is_restored_with_its_numbers_and_shapes(problem: Problem, tmp_path: Path) -> None:
    first = trainer(problem, tmp_path / "run", Chatty())
    first.step()
    first.step()
    assert first.folder
    first.folder.close()
    again = trainer(problem, tmp_path / "run", Chatty())
    assert again.resume() == []
    state, wanted = again.contenders["method"].state, first.contenders["method"].state
    assert (again.round, state.count) == (2, 2)
    for name in ("x", "turned"):
        found: Tensor = getattr(state, name)
        assert torch.equal(found, getattr(wanted, name))
        assert found.stride() == getattr(wanted, name).stride()
    assert torch.equal(
        again.contenders["local"].fed.accounts.table, first.contenders["local"].fed.accounts.table
    )


def test_a_checkpoint_of_another_run_is_refused(problem: Problem, tmp_path: Path) -> None:
    first = trainer(problem, tmp_path / "run")
    first.run()
    assert first.folder
    first.folder.close()
    other = trainer(least_squares(clients=6), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    with pytest.raises(FedkinError, match=r"parameters 75, .* but config.toml says .*parameters 3"):
        other.resume()
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before


def test_rows_that_are_lost_from_a_table_are_noticed(problem: Problem, tmp_path: Path) -> None:
    first = trainer(problem, tmp_path / "run")
    first.run()
    assert first.folder
    first.folder.close()
    path = tmp_path / "run" / "metrics.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    damage = trainer(problem, tmp_path / "run").resume()
    assert damage == [f"{path} has lost 1 of its rows", "continuing after round 4"]


@dataclass
class Broken(Method):
    """Its server forgets what a number is in round 3."""

    name = "broken"

    def init(self, fed: Federation) -> State:
        return State(x=fed.initial_model(), secret=torch.zeros(2))

    def round(self, fed: Federation, s: State) -> None:
        if fed.round == 3:
            s.secret = s.secret + torch.nan

    def personal(self, fed: Federation, s: State) -> Request:
        return fed.request(use, shared={"model": s.x})


def test_a_state_that_is_no_number_never_becomes_a_checkpoint(
    problem: Problem, tmp_path: Path
) -> None:
    with pytest.raises(DivergedError, match="by round 4, for all clients: the server's 'secret'"):
        trainer(problem, tmp_path / "run", Broken()).run()
    kept = [path.name for path in (tmp_path / "run" / "checkpoint").iterdir()]
    assert kept == ["round-00000002"]


def test_threads_are_set_anew_in_every_round(problem: Problem) -> None:
    """A request may change how many torch uses, and sums depend on it."""
    seen = []

    @dataclass
    class Watching(FedAvg):
        name = "watching"

        def round(self, fed: Federation, s: State) -> None:
            seen.append(torch.get_num_threads())
            torch.set_num_threads(2)

    before = torch.get_num_threads()
    try:
        Trainer(problem, Watching(), QUICK).run()
    finally:
        torch.set_num_threads(before)
    assert seen == [before] * 4


def test_a_run_made_longer_leaves_the_models_of_its_new_end(
    problem: Problem, tmp_path: Path
) -> None:
    settings = {"eval_every": 2, "checkpoint_every": 2, "strategy": "native:3:1x1"}
    whole = train(problem, "apfl", rounds=6, folder=tmp_path / "whole", **settings)
    shorter = train(problem, "apfl", rounds=4, folder=tmp_path / "run", **settings)
    assert shorter.folder == tmp_path / "run"  # it is alive, and its folder free for the next
    longer = train(problem, "apfl", rounds=6, folder=tmp_path / "run", resume=True, **settings)
    for client in range(problem.num_clients):
        assert torch.equal(longer.personal[client][1].weight, whole.personal[client][1].weight)
    for path in (tmp_path / "whole" / "models").iterdir():
        assert path.read_bytes() == (tmp_path / "run" / "models" / path.name).read_bytes()
