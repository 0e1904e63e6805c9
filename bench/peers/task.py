"""What every framework is given: data in a file, a model, and the local steps of a client.

This file is also imported in the others' environments: it needs numpy alone, and torch where a
framework uses it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import nn

STARTED = "PEER_STARTED"  # in the environment: when the process was started, by the clock


@dataclass(frozen=True)
class Task:
    """Clients with as many samples each, of whom some take part in a round, and their steps."""

    name: str
    layers: tuple[int, ...]  # sizes of an MLP; empty: the CNN
    shape: tuple[int, ...]
    clients: int
    samples: int
    steps: int
    per_round: int
    batch: int = 20
    lr: float = 0.01

    @property
    def epochs(self) -> int:
        """Passes over a client's samples that are as many steps; 0 if no whole number is."""
        passes, rest = divmod(self.steps * self.batch, self.samples)
        return 0 if rest else passes

    def module(self) -> nn.Module:
        import torch
        from torch import nn

        torch.manual_seed(0)
        if not self.layers:
            return nn.Sequential(
                nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
            )  # fmt: skip
        parts: list[nn.Module] = []
        for fan_in, fan_out in pairwise(self.layers):
            parts += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*parts[:-1])

    def write(self, folder: Path) -> None:
        """The task as text and its data: what they are does not matter for the time they take."""
        rng = np.random.default_rng(0)
        x = rng.normal(size=(self.clients, self.samples, *self.shape)).astype(np.float32)
        y = rng.integers(0, 10, (self.clients, self.samples))
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", y)
        (folder / "task.json").write_text(json.dumps(asdict(self)))


TASKS = (
    Task("W1", (60, 10), (60,), 50, 500, 20, 50),
    Task("W2", (784, 200, 200, 10), (784,), 50, 200, 20, 50),
    Task("W3", (), (1, 28, 28), 10, 100, 5, 10),
    Task("W4", (60, 10), (60,), 1000, 100, 5, 1000),
    # the size of the logistic regression on MNIST in FLUTE's readme: 10 of 1,000 clients a round
    Task("FLUTE", (784, 10), (784,), 1000, 60, 6, 10, batch=10, lr=0.03),
)


def read_task(folder: Path) -> Task:
    facts = json.loads((folder / "task.json").read_text())
    return Task(**{**facts, "layers": tuple(facts["layers"]), "shape": tuple(facts["shape"])})


def examples(folder: Path, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's samples; only they are read."""
    import torch

    x, y = (np.array(np.load(folder / f"{name}.npy", mmap_mode="r")[client]) for name in "xy")
    return torch.from_numpy(x), torch.from_numpy(y)


def all_examples(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """All clients' samples, [clients, samples, ...]."""
    return np.load(folder / "x.npy"), np.load(folder / "y.npy")


def local_steps(task: Task, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Plain SGD on minibatches drawn with replacement."""
    import torch
    import torch.nn.functional as F

    optimiser = torch.optim.SGD(module.parameters(), lr=task.lr)
    for _ in range(task.steps):
        rows = torch.randint(0, len(y), (task.batch,))
        optimiser.zero_grad()
        F.cross_entropy(module(x[rows]), y[rows]).backward()
        optimiser.step()


def tell(version: str, ends: list[float]) -> None:
    """The result for who started this process: when each round ended, and memory."""
    # not the peak of getrusage, which begins with that of the process that has started this one
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    took = [later - earlier for earlier, later in pairwise(ends)]
    first = time.time() - (time.perf_counter() - ends[0]) - float(os.environ[STARTED])
    facts = {"version": version, "first": first, "rounds": took, "peak_mb": peak / 1e3}
    print("RESULT " + json.dumps(facts), file=sys.stdout, flush=True)
