"""FedAvg on a task in BlazeFL: python run_blazefl.py FOLDER ROUNDS."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blazefl.contrib.fedavg import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgUplinkPackage,
)
from blazefl.core import deserialize_model, serialize_model
from task import examples, local_steps, read_task, tell  # type: ignore[import-not-found]
from torch import Tensor, nn

FOLDER, ROUNDS = Path(sys.argv[1]), int(sys.argv[2])
TASK = read_task(FOLDER)


class Models:
    """What BlazeFL asks for a model."""

    def select_model(self, name: str) -> nn.Module:
        made: nn.Module = TASK.module()
        return made


class Data:
    """What BlazeFL asks for a client's data: they are read in `train`, as all of a client's."""

    def get_dataloader(self, type_: str, cid: int | None, **rest: Any) -> None:
        return None


class Trainer(FedAvgBaseClientTrainer):  # type: ignore[misc]
    """One client after the other, each with the task's steps."""

    def train(self, model_parameters: Tensor, train_loader: Any, cid: int) -> FedAvgUplinkPackage:
        deserialize_model(self.model, model_parameters)
        x, y = examples(FOLDER, cid)
        local_steps(TASK, self.model, x, y)
        return FedAvgUplinkPackage(cid, serialize_model(self.model), len(y))


def main() -> None:
    given = {"model_selector": Models(), "model_name": "", "dataset": Data(), "device": "cpu",
             "num_clients": TASK.clients, "batch_size": TASK.batch, "seed": 0}  # fmt: skip
    share = TASK.per_round / TASK.clients
    server = FedAvgBaseServerHandler(global_round=ROUNDS, sample_ratio=share, **given)
    trainer, ends = Trainer(epochs=1, lr=TASK.lr, **given), list[float]()
    while not server.if_stop():
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
        ends.append(time.perf_counter())
    tell(version("blazefl"), ends)


if __name__ == "__main__":
    main()
