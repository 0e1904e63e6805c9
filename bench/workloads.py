"""The four workloads, once for fedkin and once as the loop everybody writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.engines import Embedded
from fedkin.methods import FedAvg, Method


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """A model, clients x samples of random data, and local steps of batch 20."""

    name: str
    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    clients: int
    samples: int
    steps: int
    target: float

    def data(self) -> ClientData:
        torch.manual_seed(0)
        x = torch.randn(self.clients * self.samples, *self.shape)
        y = torch.randint(0, 10, (len(x),))
        examples = Examples(x, y, torch.arange(self.clients + 1) * self.samples)
        return ClientData(examples, examples, 10)

    def ours(self, strategy: str = "auto", method: Method | None = None) -> Ours:
        """One round of a method (FedAvg unless given) per call."""
        problem = Problem(self.module(), self.data(), batch_size=20)
        fed = Federation(problem, Embedded(problem, strategy))
        return Ours(fed, method or FedAvg(lr=0.01, local_steps=self.steps))

    def bare(self) -> Callable[[], None]:
        """The same round as a bare loop: one module, autograd, torch.optim.SGD."""
        module, data = self.module(), self.data()
        x = data.train.x.view(self.clients, self.samples, *self.shape)
        y = data.train.y.view(self.clients, self.samples)
        model = {name: value.clone() for name, value in module.state_dict().items()}

        def round_() -> None:
            total = {name: torch.zeros_like(value) for name, value in model.items()}
            for i in range(self.clients):
                module.load_state_dict(model)
                optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
                for _ in range(self.steps):
                    batch = torch.randint(0, self.samples, (20,))
                    optimiser.zero_grad()
                    F.cross_entropy(module(x[i][batch]), y[i][batch]).backward()
                    optimiser.step()
                for name, value in module.state_dict().items():
                    total[name] += value
            for name, value in total.items():
                model[name] = value / self.clients

        return round_


class Ours:
    """A method's rounds, one per call."""

    def __init__(self, fed: Federation, method: Method) -> None:
        self.fed, self.method, self.state = fed, method, method.init(fed)

    def __call__(self) -> None:
        self.fed.begin_round(self.fed.round + 1)
        self.method.round(self.fed, self.state)

    def gradients_per_round(self) -> float:
        return self.fed.accounts.total("gradients") / self.fed.round


def chosen(works: Sequence[Workload], only: str | None) -> list[Workload]:
    """All of them, or the one with this name."""
    found = [work for work in works if only in (None, work.name)]
    if not found:
        raise SystemExit(f"no row is called {only}: {', '.join(work.name for work in works)}")
    return found


WORKLOADS = (
    Workload("W1", lambda: mlp(60, 10), (60,), 50, 500, 20, 0.025),
    Workload("W2", lambda: mlp(784, 200, 200, 10), (784,), 50, 200, 20, 0.22),
    Workload("W3", cnn, (1, 28, 28), 10, 100, 5, 0.50),
    Workload("W4", lambda: mlp(60, 10), (60,), 1000, 100, 5, 0.015),
)
HIDDEN = Workload("W1 with a hidden layer", lambda: mlp(60, 64, 10), (60,), 50, 500, 20, 0.0)
