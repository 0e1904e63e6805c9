"""How far honest sites' answers are apart: what the server's limits must leave alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from sklearn.datasets import load_digits

from bench.timing import Row
from fedkin.core.blocks import Block
from fedkin.core.federation import Federation, Request
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.engines import Wire
from fedkin.engines.flower.plausible import norm_of, times_the_others, times_the_work
from fedkin.methods.registry import all_methods, get_method
from fedkin.models import build

SITES, ROUNDS, SEEDS, ALPHA, EPOCHS = 12, 8, 5, 0.1, 5
SMALLEST, LARGEST = 10, 1000  # samples of a site


@dataclass
class Compared:
    """An engine that compares every answer with the others', as the server of sites does."""

    wire: Wire
    largest: float = 0.0
    most_work: float = 0.0
    where: str = ""
    all: list[float] = field(default_factory=list)

    @property
    def memory(self) -> object:
        return self.wire.memory

    def run(self, request: Request) -> Iterator[Block]:
        blocks = list(self.wire.run(request))
        shapes = [{k: v.shape for k, v in block.reply.items()} for block in blocks]
        if request.remember and len(blocks) > 2:
            alike = [b for b, shape in zip(blocks, shapes, strict=True) if shape == shapes[0]]
            sizes = self.wire.problem.train.sizes[request.at].numpy().astype(float)
            for name in alike[0].reply:
                times = times_the_others([norm_of(block.reply[name]) for block in alike])
                self.all += times
                if max(times) > self.largest:
                    self.largest = max(times)
                    self.where = f"{name}, round {request.place[0]}"
            if len(alike) == len(blocks):
                for kind in ("gradients", "samples"):
                    work = np.array([float(getattr(block, kind)[0]) for block in blocks])
                    self.most_work = max([self.most_work, *times_the_work(work, sizes)])
        yield from blocks


def plausible(only: str | None = None) -> Iterator[Row]:
    """The largest honest answer beside the others' upper quarter, and the most work, for every
    method: 12 sites of 10 to 1,000 digits whose classes are Dirichlet(0.1), 8 rounds, 5 seeds;
    NAME/epochs with five passes over a site's data in place of a number of steps; NAME/giant
    the same with one site of 1,000 digits among sites of 10."""
    counted = [name for name in all_methods() if hasattr(get_method(name), "local_epochs")]
    names = [*all_methods(), *(f"{n}/{how}" for n in counted for how in ("epochs", "giant"))]
    for name in (only,) if only else names:
        runs = [compared(name, seed) for seed in range(SEEDS)]
        worst = max(runs, key=lambda run: run.largest)
        answers = np.concatenate([run.all for run in runs] or [[]])
        yield {
            "method": name,
            "answers": len(answers),
            "above_10": int((answers > 10).sum()),
            "above_100": int((answers > 100).sum()),
            "largest": worst.largest,
            "where": worst.where,
            "work": max(run.most_work for run in runs),
        }


def compared(name: str, seed: int) -> Compared:
    """Some rounds of a method over sites that differ as much as sites do."""
    name, _, how = name.partition("/")
    cls = get_method(name)
    model = {"": "mlp:32", "layers": "mlp:32", "norms": "mlp-norm:32"}[cls.needs]
    sizes = np.geomspace(SMALLEST, LARGEST, SITES).round().astype(int)
    if how == "giant":
        sizes[:-1] = SMALLEST
    data = unequal(seed, sizes.tolist())
    problem = Problem(build(model, (64,), 10, seed=seed), data, batch_size=10)
    method = cls(local_epochs=EPOCHS) if how else cls()  # type: ignore[call-arg]
    if hasattr(method, "warm_up"):
        method = replace(method, warm_up=2)  # type: ignore[call-arg]
    engine = Compared(Wire(problem))
    fed = Federation(problem, engine, seed=seed)
    state = method.init(fed)
    for number in range(1, ROUNDS + 1):
        fed.begin_round(number)
        method.round(fed, state)
    return engine


def unequal(seed: int, sizes: Sequence[int]) -> ClientData:
    """Digits at sites of very different sizes and classes."""
    x, y = load_digits(return_X_y=True)
    x, rng = torch.tensor(x / 16, dtype=torch.float32), np.random.default_rng(seed)
    parts = []
    for size in sizes:
        shares = rng.dirichlet([ALPHA] * 10)
        chance = shares[y] / shares[y].sum()
        rows = rng.choice(len(y), size, p=chance)
        parts.append((x[rows], torch.tensor(y[rows])))
    whole = Examples.of(parts)
    return ClientData(whole, whole, 10)
