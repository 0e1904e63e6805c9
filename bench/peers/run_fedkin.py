"""FedAvg on a task in Fedkin: python run_fedkin.py FOLDER ROUNDS."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch
from task import read_task, tell  # type: ignore[import-not-found]

import fedkin
from fedkin.data.clients import ClientData, Examples
from fedkin.runs.progress import Progress


def main(folder: Path, rounds: int) -> None:
    task, ends = read_task(folder), list[float]()
    x, y = (np.load(folder / f"{name}.npy") for name in "xy")
    offsets = torch.arange(task.clients + 1) * task.samples
    given = (torch.from_numpy(x).flatten(0, 1), torch.from_numpy(y).flatten())
    examples = Examples(*given, offsets)
    problem = fedkin.Problem(
        task.module(), ClientData(examples, examples, 10), batch_size=task.batch
    )
    method = fedkin.methods.FedAvg(lr=task.lr, local_steps=task.steps)

    def ended(done: Progress) -> None:
        ends.append(time.perf_counter())

    # the last round is evaluated, and its time is not counted
    fedkin.train(problem, method, rounds=rounds + 1, eval_every=rounds + 1, baseline=False,
                 fraction=task.per_round / task.clients, on_round=ended)  # fmt: skip
    tell(fedkin.__version__, ends[:-1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
