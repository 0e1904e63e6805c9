"""FedAvg on a task in Flower's simulation: python run_flower.py FOLDER ROUNDS."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import examples, local_steps, read_task, tell  # type: ignore[import-not-found]

FOLDER, ROUNDS = Path(sys.argv[1]), int(sys.argv[2])
TASK = read_task(FOLDER)
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    module = TASK.module()
    module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = examples(FOLDER, int(context.node_config["partition-id"]))
    local_steps(TASK, module, x, y)
    arrays, facts = ArrayRecord(module.state_dict()), MetricRecord({"num-examples": len(y)})
    return Message(content=RecordDict({"arrays": arrays, "metrics": facts}), reply_to=message)


class Clocked(FedAvg):
    """FedAvg that notes when each round's mean is there."""

    ends: list[float] = []  # noqa: RUF012 (one run in a process)

    def aggregate_train(self, *given: Any) -> Any:
        found = super().aggregate_train(*given)
        self.ends.append(time.perf_counter())
        return found


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Clocked(
        fraction_train=TASK.per_round / TASK.clients, fraction_evaluate=0.0,
        min_train_nodes=TASK.per_round, min_available_nodes=TASK.clients,
    )  # fmt: skip
    arrays = ArrayRecord(TASK.module().state_dict())
    strategy.start(grid, arrays, num_rounds=ROUNDS)


if __name__ == "__main__":
    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=TASK.clients, backend_config=resources)
    tell(version("flwr"), Clocked.ends)
