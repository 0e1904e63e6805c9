"""Stability of masked training, as the paper defines it.

Two data sets that differ in one sample of one client, the same masks and minibatches: how
far apart do the two models end? The paper's theorem bounds the distance after the same number
of rounds with the same step size; its bound shrinks with the share of coordinates that clients
hold. Masked runs also move less, so the distance is measured in two more ways: after as many
steps per coordinate (rounds/rate rounds), and relative to the distance travelled from the start.
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
DISTANCE = Measure(
    "distance", "mean distance of the two models, equal rounds", lambda run: None, ".4f"
)
EQUAL_STEPS = Measure(
    "equal_steps", "the same at equal steps per coordinate", lambda run: None, ".4f"
)
RELATIVE = Measure(
    "relative", "distance over the way from the start, equal rounds", lambda run: None, ".4f"
)


def stability(seed: int, pairs: int, rounds: int, kind: Kind) -> dict[str, dict[str, float]]:
    """By rate, over pairs of data sets: the mean distance of two logistic regressions, in the
    three measures above."""
    random = np.random.default_rng(seed)
    data = logistic_data(random)
    changed = [other_sample(data, random) for _ in range(pairs)]
    found = {}
    for label, rate in RATES.items():
        method = SubmodelMasks(rates=(rate,), kind=kind, lr=0.02, local_steps=5)
        ends = (rounds, round(rounds / rate))
        models = trained(data, method, ends, seed)
        others = torch.stack([trained(d, method, ends, seed) for d in changed], 1)
        apart = (others - models[:, None]).norm(dim=2).mean(1).tolist()
        start = Problem(build("logistic", (FEATURES,), 2), data).initial[0]
        travelled = float((models[0] - start).norm())
        found[label] = {
            "distance": apart[0], "equal_steps": apart[1], "relative": apart[0] / travelled
        }  # fmt: skip
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


def trained(data: ClientData, method: SubmodelMasks, ends: tuple[int, ...], seed: int) -> Tensor:
    """The model after each of these numbers of rounds: [len(ends), d]."""
    problem = Problem(build("logistic", (FEATURES,), 2), data, l2=1e-3, batch_size=5)
    fed = Federation(problem, Embedded(problem, "stacked"), seed)
    state, models = method.init(fed), {}
    for number in range(1, max(ends) + 1):
        fed.begin_round(number)
        method.round(fed, state)
        models[number] = state.x
    return torch.stack([models[end] for end in ends])
