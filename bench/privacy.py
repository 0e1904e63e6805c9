"""What differential privacy costs, and what it hides: utility against epsilon, and an attack."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.timing import Row
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData
from fedkin.errors import FedkinWarning
from fedkin.methods import Ditto, FedAvg, Method
from fedkin.runs.config import make_config
from fedkin.runs.train import train

DELTA = 1e-5
# of the utility runs: epsilons after all rounds; None is without noise and without clipping
EPSILONS = (None, 10.0, 3.0, 1.0)
# of the attack: models to find thresholds with, models to attack, clients in each of them
SHADOWS, TARGETS, MEMBERS = 8, 8, 20


def privacy() -> list[Row]:
    """Utility against epsilon for FedAvg and Ditto, PERM with noisy rows, and an attack."""
    with warnings.catch_warnings():  # that much noise makes losses grow, as the table shows
        warnings.simplefilter("ignore", FedkinWarning)
        found = [*utility(), *noisy_perm(), *attack()]
    columns = list(dict.fromkeys(name for row in found for name in row))
    return [{name: row.get(name, "") for name in columns} for row in found]


def scores(problem: Problem, method: Method, **settings: Any) -> Row:
    """Mean accuracies at the end of a run, and the signal-to-noise of its rounds."""
    run = train(problem, method, strategy="stacked", eval_every=1000, **settings)
    last = run.metrics.iloc[-1]
    alone = {"alone": float(last["local_accuracy"])} if settings.get("baseline") else {}
    shared = last.get("global_accuracy")
    return {
        "personal": float(last["personal_accuracy"]),
        **({"shared": float(shared)} if shared == shared and shared is not None else {}),
        **alone,
        **({"snr": float(run.metrics["dp_snr"].median())} if "dp_snr" in run.metrics else {}),
    }


def utility() -> list[Row]:
    """mnist, 100 clients with 2 classes each, all in every round; and noise as of 10,000."""
    rows: list[Row] = []
    data = {
        "name": "mnist", "num_clients": 100, "partition": "classes", "train_per_client": 100,
        "test_per_client": 50,
    }  # fmt: skip
    config = make_config({"method": "fedavg", "data": data, "model": {"name": "logistic"}})
    problem = config.make_problem(config.make_data())
    for method in (FedAvg(lr=0.05), Ditto(lr=0.05)):
        for cohort in (None, 10_000):
            for epsilon in EPSILONS if cohort is None else EPSILONS[1:]:
                private: dict[str, Any] = {} if epsilon is None else {
                    "dp_epsilon": epsilon, "dp_delta": DELTA, "dp_clip": 0.3, "dp_cohort": cohort,
                }  # fmt: skip
                first = not rows
                found = scores(problem, method, rounds=30, baseline=first, **private)
                what = f"{method.name} {cohort or 100} clients"
                rows.append({"what": what, "epsilon": epsilon or "-", **found})
    return rows


def noisy_perm() -> list[Row]:
    """PERM whose gradients, sketched to 32 numbers, and visits are clipped and noised each."""
    rows: list[Row] = []
    limits = {"dx": 0.3, "g": 0.3, "v": 0.1}
    config = make_config({
        "method": "perm-two-stage", "data": {"name": "rotated-digits"},
        "model": {"name": "logistic"}, "options": {"warm_up": 10, "sketch": 32},
    })  # fmt: skip
    problem, method = config.make_problem(config.make_data()), config.make_method()
    for epsilon in (None, 1e4, 1e3, 1e2):
        private: dict[str, Any] = {} if epsilon is None else {
            "dp_epsilon": epsilon, "dp_delta": DELTA, "dp_clip": limits
        }  # fmt: skip
        found = scores(problem, method, rounds=30, baseline=epsilon is None, **private)
        rows.append({"what": "perm-two-stage", "epsilon": epsilon or "-", **found})
    return rows


# membership inference --------------------------------------------------------------------


def attack() -> list[Row]:
    """Was this client among those that trained the shared model?

    The attacker knows a client's data and the model, and has trained shadow models on random
    halves of the same clients with the same settings. A client's threshold is the middle between
    its mean loss in shadows with it and in shadows without it; below it "yes" is said. The
    advantage is the rate of true minus that of false alarms, on models it has not seen.
    """
    config = make_config({
        "method": "fedavg", "model": {"name": "mlp:32", "batch_size": 8},
        "data": {
            "name": "mnist", "num_clients": 2 * MEMBERS, "partition": "iid", "train_per_client": 8,
            "test_per_client": 25,
        },
    })  # fmt: skip
    whole = config.make_problem(config.make_data())
    rows: list[Row] = []
    for epsilon in (None, 1e3, 1e2, 10.0, 1.0):
        members, losses, accuracies = [], [], []
        for number in range(SHADOWS + TARGETS):
            chosen = np.random.default_rng(number).permutation(whole.num_clients)[:MEMBERS]
            members.append(np.isin(np.arange(whole.num_clients), chosen))
            model, accuracy = shared_model(whole, sorted(chosen.tolist()), epsilon, number)
            losses.append(client_losses(whole, model))
            accuracies.append(accuracy)
        advantage = said_rightly(np.array(members), np.array(losses))
        bound = 1.0 if epsilon is None or epsilon > 30 else (
            (np.exp(epsilon) - 1 + 2 * DELTA) / (np.exp(epsilon) + 1)
        )  # fmt: skip
        rows.append({
            "what": "membership attack", "epsilon": epsilon or "-",
            "shared": float(np.mean(accuracies)), "advantage": advantage, "bound": float(bound),
        })  # fmt: skip
    return rows


def shared_model(
    whole: Problem, chosen: Sequence[int], epsilon: float | None, seed: int
) -> tuple[Tensor, float]:
    """FedAvg of some clients, and its accuracy on their test data."""
    data = whole.data
    some = ClientData(data.train.only(chosen), data.test.only(chosen), data.num_classes)
    private: dict[str, Any] = {} if epsilon is None else {
        "dp_epsilon": epsilon, "dp_delta": DELTA, "dp_clip": 1.0
    }  # fmt: skip
    run = train(
        whole.with_data(some, "cpu"), FedAvg(lr=0.2, local_steps=10), rounds=30, seed=seed,
        eval_every=1000, baseline=False, strategy="stacked", **private,
    )  # fmt: skip
    state = run.trainer.contenders["method"].state
    return state.x, float(run.metrics["global_accuracy"].iloc[-1])


def client_losses(whole: Problem, model: Tensor) -> list[float]:
    """The model's mean loss on every client's training data."""
    module, found = whole.module(model), []
    with torch.no_grad():
        for i in range(whole.num_clients):
            x, y = whole.data.train[i]
            found.append(float(torch.nn.functional.cross_entropy(module(x.to(whole.dtype)), y)))
    return found


def said_rightly(members: np.ndarray[Any, Any], losses: np.ndarray[Any, Any]) -> float:
    """True minus false alarms, with thresholds from the first models on the others."""
    known, shadow = members[:SHADOWS], losses[:SHADOWS]
    inside = (shadow * known).sum(0) / known.sum(0).clip(1)
    outside = (shadow * ~known).sum(0) / (~known).sum(0).clip(1)
    said = (losses[SHADOWS:] < (inside + outside) / 2) == (inside < outside)
    true = members[SHADOWS:]
    return float(said[true].mean() - said[~true].mean())
