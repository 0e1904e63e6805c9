"""What a step of the objective `maml` costs: a gradient, a second one and a Hessian product."""

from __future__ import annotations

from collections.abc import Iterator

from bench.timing import Row, interleaved
from bench.workloads import HIDDEN, WORKLOADS, chosen
from fedkin.methods import LSGD


def maml(only: str | None = None) -> Iterator[Row]:
    """A step of LSGD on `maml` in gradients' time: FedAvg's on W1, on a hidden layer, on W2."""
    for work in chosen((WORKLOADS[0], HIDDEN, WORKLOADS[1]), only):
        method = LSGD(objective="maml", inner_lr=0.01, lr=0.01, local_steps=work.steps)
        measured = interleaved(work.ours(method=method), work.ours(), 9)
        yield {"workload": work.name, "gradients": measured["ratio"], "target": 4.0}
