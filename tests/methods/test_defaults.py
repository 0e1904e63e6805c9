"""Options as they come: a method takes its own, and with nothing set it is worth running."""

from __future__ import annotations

from typing import Any

import pytest

from fedkin.core.problem import Problem
from fedkin.data import DataConfig, load
from fedkin.methods import L2SGD, Method, PFedKM, PFedMe
from fedkin.methods.registry import all_methods, get_method
from fedkin.models import build
from fedkin.runs.train import train
from tests.helpers import federation, quadratic

KINDS: dict[str, dict[str, Any]] = {
    "groups": {"name": "digits", "num_clients": 12, "partition": "iid", "label_groups": 3},
    "skewed": {"name": "digits", "num_clients": 12, "alpha": 1.0},
}


def accuracy(method: Method, kind: str, fraction: float = 1.0) -> float:
    data = load(DataConfig(**KINDS[kind]), seed=3)
    problem = Problem(build("mlp:32", data.input_shape, 10, seed=3), data)
    run = {"rounds": 30, "eval_every": 30, "baseline": False, "progress": False, "seed": 3}
    return train(problem, method, fraction=fraction, **run).accuracy


@pytest.mark.parametrize("name", sorted(all_methods()))
def test_no_method_refuses_an_option_that_it_has_itself(name: str) -> None:
    cls = get_method(name)
    assert not set(vars(cls).get("__annotations__", {})) & cls.refuses.keys()


# what each adds to training alone or to one model shows with its defaults, too
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("name", ["pfedkm", "fedfomo", "ditto", "fedper", "fedrep"])
def test_with_groups_personal_methods_are_no_worse_than_training_alone(
    name: str, fraction: float
) -> None:
    alone = accuracy(get_method("local")(), "groups", fraction)
    assert accuracy(get_method(name)(), "groups", fraction) > alone - 0.05


@pytest.mark.parametrize("name", ["pfedkm", "pfedme", "l2sgd", "ditto", "apfl", "fedavg-local"])
def test_with_skewed_labels_they_are_no_worse_than_one_model_or_none(name: str) -> None:
    simple = max(accuracy(get_method(m)(), "skewed") for m in ("local", "fedavg"))
    assert accuracy(get_method(name)(), "skewed") > simple - 0.05


@pytest.mark.parametrize("method", [PFedMe, PFedKM])
@pytest.mark.parametrize("beyond", [{"lr": 1.1}, {"inner_lr": 1.1}, {"lam": 21.0}])
def test_steps_of_pfedme_beyond_their_goal_are_told(
    method: type[PFedMe], beyond: dict[str, float]
) -> None:
    fed = federation(quadratic([1.0, 2.0], [1.0, 2.0]))
    assert method().remarks(fed) == ()
    (said,) = method(**beyond).remarks(fed)
    assert "is above 1" in said.sentence
    assert said.unstable


def test_l2sgd_tells_where_its_theorem_ends() -> None:
    fed = federation(quadratic([1.0, 2.0], [1.0, 2.0]))
    assert L2SGD().remarks(fed) == ()
    assert L2SGD(lam=0.0).remarks(fed) == ()
    assert L2SGD(lr=0.05, lam=0.5, p=0.1).remarks(fed) == ()  # p/(4*lam)
    (said,) = L2SGD(lr=0.051, lam=0.5, p=0.1).remarks(fed)
    assert "lr = 0.051 is beyond 0.05" in said.sentence
    assert said.unstable
