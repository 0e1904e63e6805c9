"""Stability of masked training, as the paper defines it.

Two data sets that differ in one sample of one client, the same masks and minibatches: how
far apart do the two models end? The paper's claim: the fewer coordinates a client holds,
the nearer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.engines import Embedded
from fedkin.methods.submodel_masks import Kind, SubmodelMasks
from fedkin.models import build
from fedkin.papers.measures import Measure

CLIENTS, SAMPLES, FEATURES = 10, 20, 20
RATES = {"rate 1": 1.0, "rate 1/2": 0.5, "rate 1/4": 0.25, "rate 1/8": 0.125}
DISTANCE = Measure("distance", "mean distance of the two models", lambda run: None, ".4f")


def stability(seed: int, pairs: int, rounds: int, kind: Kind) -> dict[str, dict[str, float]]:
    """By rate: the mean distance of two logistic regressions, over pairs of data sets."""
    random = np.random.default_rng(seed)
    data = logistic_data(random)
    changed = [other_sample(data, random) for _ in range(pairs)]
    found = {}
    for label, rate in RATES.items():
        method = SubmodelMasks(rates=(rate,), kind=kind, lr=0.02, local_steps=5)
        model = trained(data, method, rounds, seed)
        apart = [float((trained(d, method, rounds, seed) - model).norm()) for d in changed]
        found[label] = {"distance": float(np.mean(apart))}
    return found


def logistic_data(random: np.random.Generator) -> ClientData:
    """Clients whose labels follow hyperplanes of their own, near each other."""
    common = random.normal(size=FEATURES)
    parts = []
    for _ in range(CLIENTS):
        x = random.normal(size=(SAMPLES, FEATURES))
        y = x @ (common + random.normal(size=FEATURES) / 2) > 0
        parts.append((x.astype(np.float32), y.astype(np.int64)))
    examples = Examples.of(parts)
    return ClientData(examples, examples, 2)


def other_sample(data: ClientData, random: np.random.Generator) -> ClientData:
    """The same data but for one sample of one client."""
    x, y = data.train.x.clone(), data.train.y.clone()
    place = int(random.integers(len(y)))
    x[place] = torch.from_numpy(random.normal(size=FEATURES).astype(np.float32))
    y[place] = int(random.integers(2))
    return replace(data, train=replace(data.train, x=x, y=y))


def trained(data: ClientData, method: SubmodelMasks, rounds: int, seed: int) -> Tensor:
    problem = Problem(build("logistic", (FEATURES,), 2), data, l2=1e-3, batch_size=5)
    fed = Federation(problem, Embedded(problem, "stacked"), seed)
    state = method.init(fed)
    for number in range(1, rounds + 1):
        fed.begin_round(number)
        method.round(fed, state)
    model: Tensor = state.x
    return model
