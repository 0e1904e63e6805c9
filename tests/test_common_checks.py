"""What every registered method promises. A new method is checked without being named here."""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import pytest
import torch
from torch import Tensor

from fedkin.core.faults import Faults
from fedkin.core.problem import Problem
from fedkin.engines import Wire
from fedkin.methods import Method
from fedkin.methods.registry import all_methods, get_method
from fedkin.models import build
from fedkin.runs.evaluation import score
from fedkin.runs.folder import RunFolder
from fedkin.runs.training import Settings, Trainer
from tests.helpers import blobs, federation, personal_models, run

SHAPES = {"logistic": (5,), "mlp:8": (5,), "cnn:2,3,8": (1, 8, 8)}
every_method = pytest.mark.parametrize("name", list(all_methods()))
every_model = pytest.mark.parametrize("model", list(SHAPES))


def make(name: str, **options: object) -> Method:
    """A method with its defaults, but the same local work for all that have a choice."""
    cls = get_method(name)
    common = {"lr": 0.05, "local_steps": 4}
    known = {f.name for f in fields(cls)}
    return cls(**{k: v for k, v in {**common, **options}.items() if k in known})


@cache
def problem(model: str = "logistic", dtype: torch.dtype = torch.float32) -> Problem:
    shape = SHAPES[model]
    dimension = 64 if len(shape) == 3 else 5
    data = blobs(clients=5, samples=20, dimension=dimension, shape=shape)
    return Problem(build(model, shape, 3, seed=1), data, batch_size=6, dtype=dtype)


def easy(name: str) -> Problem:
    """Logistic regression, or the least that a method can cut."""
    return problem("mlp:8" if "rates" in {f.name for f in fields(get_method(name))} else "logistic")


def outcome(name: str, engine: str, strategy: str) -> Tensor:
    """Personal models after three rounds with three of five clients each, in double precision."""
    fed = federation(problem("mlp:8", torch.float64), engine, strategy, fraction=0.6, seed=3)
    method = make(name)
    return personal_models(method, fed, run(method, fed, 3))


@every_method
@every_model
def test_runs_on_every_model_family_and_scores_every_client(name: str, model: str) -> None:
    rounds = Settings(rounds=2, eval_every=1, baseline=False, strategy="stacked")
    whole = {"rates": (1.0,)} if model == "logistic" else {}  # it has nothing to cut
    result = Trainer(problem(model), make(name, **whole), rounds).run()
    last = result.clients[result.clients["round"] == 2]
    assert len(last) == 5
    assert last["personal_accuracy"].between(0, 1).all()


@every_method
def test_beats_chance_on_easy_data(name: str) -> None:
    settings = Settings(rounds=40, eval_every=40, baseline=False, strategy="stacked")
    assert Trainer(easy(name), make(name), settings).run().accuracy > 0.6


@every_method
def test_partial_participation_leaves_the_others_alone(name: str) -> None:
    fed, method = federation(easy(name), fraction=0.2), make(name)
    run(method, fed, 1)
    busy = (fed.accounts.column("gradients") > 0).sum()
    assert busy <= max(1, int(0.2 * 5))


@every_method
def test_lost_and_broken_clients_never_break_a_model(name: str) -> None:
    fed, method = federation(easy(name), faults=Faults(drop=0.3, nan=0.3)), make(name)
    state = run(method, fed, 6)
    assert torch.isfinite(score(fed, method.personal(fed, state)).loss).all()


@every_method
def test_a_round_in_which_nobody_answers_changes_no_model(name: str) -> None:
    fed, method = federation(easy(name), faults=Faults(drop=1.0)), make(name)
    state = run(method, fed, 2)
    fresh = federation(easy(name))
    begun = method.init(fresh)
    for each in (fed, fresh):
        each.begin_round(99)  # the same randomness for methods that adapt before use
    before = personal_models(method, fresh, begun)
    torch.testing.assert_close(personal_models(method, fed, state), before)
    assert fed.accounts.table.sum() == 0


@every_method
def test_same_seed_same_bits_other_seed_other_bits(name: str) -> None:
    def models(seed: int) -> Tensor:
        fed, method = federation(problem("mlp:8"), seed=seed, fraction=0.6), make(name)
        return personal_models(method, fed, run(method, fed, 3))

    first = models(1)
    assert torch.equal(first, models(1))
    assert not torch.equal(first, models(2))


@every_method
@pytest.mark.parametrize(
    "strategy", ["native:2:1x1", "native:5:1x1", "vmap:3:1x1", "native:1:2x1", "autograd:1:2x1"]
)
def test_every_strategy_gives_the_same_models(name: str, strategy: str) -> None:
    expected = outcome(name, "embedded", "native:3:1x1")
    torch.testing.assert_close(outcome(name, "embedded", strategy), expected, rtol=0, atol=1e-10)


@every_method
def test_the_wire_gives_the_same_models(name: str) -> None:
    expected = outcome(name, "embedded", "native:3:1x1")
    torch.testing.assert_close(outcome(name, "wire", ""), expected, rtol=0, atol=1e-10)


@every_method
def test_bytes_counted_are_the_bytes_that_crossed_the_wire(name: str) -> None:
    wired, stacked = federation(easy(name), "wire"), federation(easy(name))
    for fed in (wired, stacked):
        run(make(name), fed, 3)
    engine = wired.engine
    assert isinstance(engine, Wire)
    assert engine.payload_down == wired.accounts.total("bytes_down")
    assert engine.payload_up == wired.accounts.total("bytes_up")
    assert torch.equal(wired.accounts.table, stacked.accounts.table)


@every_method
def test_state_survives_saving_and_loading(name: str, tmp_path) -> None:
    def trainer(folder: str) -> Trainer:
        settings = Settings(rounds=4, checkpoint_every=2, eval_every=2, strategy="native:3:1x1")
        kept = RunFolder.create(tmp_path / folder, f'method = "{name}"\n')
        return Trainer(problem("mlp:8"), make(name), settings, kept)

    whole, halted = trainer("whole"), trainer("halted")
    whole.run()
    halted.step()
    halted.step()
    again = Trainer(problem("mlp:8"), make(name), halted.settings, halted.folder)
    assert again.resume() == []
    again.run()
    for file in ("metrics.csv", "clients.csv"):
        a, b = ((tmp_path / folder / file).read_text() for folder in ("whole", "halted"))
        assert without_clocks(a) == without_clocks(b)
    for path in (tmp_path / "whole" / "models").iterdir():
        assert path.read_bytes() == (tmp_path / "halted" / "models" / path.name).read_bytes()


def without_clocks(text: str) -> list[list[str]]:
    """csv rows without columns that hold wall-clock seconds."""
    rows = [line.split(",") for line in text.splitlines()]
    kept = [i for i, title in enumerate(rows[0]) if not title.endswith("_seconds")]
    return [[row[i] for i in kept] for row in rows]
