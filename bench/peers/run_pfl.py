"""FedAvg on a task in pfl-research's simulation: python run_pfl.py FOLDER ROUNDS."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from task import all_examples, read_task, tell  # type: ignore[import-not-found]
from torch import Tensor, nn


class Judged(nn.Module):
    """The task's model with the two methods that pfl asks of one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.module(x), y.long())

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        with torch.no_grad():
            return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Notes when each round has ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        self.ends.append(time.perf_counter())
        return False, Metrics()


def main(folder: Path, rounds: int) -> None:
    task, clock = read_task(folder), Clock()
    x, y = all_examples(folder)
    everybody = list(range(task.clients))
    data = FederatedDataset.from_slices(
        {i: [x[i], y[i]] for i in everybody}, get_user_sampler("minimize_reuse", everybody)
    )
    module = Judged(task.module())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        # evaluated in the first round alone, which no time is taken of
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=rounds + 1,
            train_cohort_size=task.per_round, val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        # pfl stops a user at the end of its data: then passes are counted, not steps
        NNTrainHyperParams(
            local_num_epochs=task.epochs or None, local_learning_rate=task.lr,
            local_batch_size=task.batch, local_num_steps=None if task.epochs else task.steps,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
    )  # fmt: skip
    tell(version("pfl"), clock.ends)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
