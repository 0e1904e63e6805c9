"""FedAvg on a task in FedJAX: python run_fedjax.py FOLDER ROUNDS."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax

jax.tree_map = jax.tree_util.tree_map  # which FedJAX calls by the name it had before

import fedjax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from task import Task, all_examples, read_task, tell  # type: ignore[import-not-found]  # noqa: E402

# the CNN of the task: channels in and out of its convolutions, sizes of its last layers
CHANNELS, LAST = (1, 32, 64), (1024, 512, 10)


def initial(task: Task) -> list[Any]:
    """Weights and biases of every layer."""
    rng = np.random.default_rng(0)
    shapes: list[tuple[int, ...]] = []
    if not task.layers:
        shapes += [(o, i, 5, 5) for i, o in pairwise(CHANNELS)]
    shapes += [(i, o) for i, o in pairwise(task.layers or LAST)]
    return [
        (jnp.array(rng.normal(0, 0.05, shape), jnp.float32), jnp.zeros(shape[len(shape) == 2]))
        for shape in shapes
    ]


def outputs(layers: list[Any], x: Any) -> Any:
    for place, (weight, bias) in enumerate(layers):
        if weight.ndim == 4:
            x = jax.lax.conv(x, weight, (1, 1), "VALID") + bias[:, None, None]
            x, pool = jax.nn.relu(x), (1, 1, 2, 2)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, pool, pool, "VALID")
        else:
            x = x.reshape(len(x), -1) @ weight + bias
            x = jax.nn.relu(x) if place < len(layers) - 1 else x
    return x


def loss(layers: list[Any], batch: Any, rng: Any) -> Any:
    chances = jax.nn.log_softmax(outputs(layers, batch["x"]))
    return -jnp.take_along_axis(chances, batch["y"][:, None], 1).mean()


def main(folder: Path, rounds: int) -> None:
    task, ends = read_task(folder), list[float]()
    x, y = all_examples(folder)
    datasets = [fedjax.ClientDataset({"x": own, "y": its}) for own, its in zip(x, y, strict=True)]
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.jit(jax.grad(loss)),
        fedjax.optimizers.sgd(task.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=task.batch, num_epochs=None, num_steps=task.steps
        ),
    )
    state, rng = algorithm.init(initial(task)), np.random.default_rng(0)
    for number in range(rounds):
        chosen = rng.choice(task.clients, task.per_round, replace=False)
        keys = jax.random.split(jax.random.PRNGKey(number), task.per_round)
        clients = [(int(i), datasets[i], key) for i, key in zip(chosen, keys, strict=True)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        ends.append(time.perf_counter())
    tell(version("fedjax"), ends)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
