"""A run's numbers as TensorBoard event files."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

from fedkin.errors import FedkinError
from fedkin.runs.groups import Records


def write_events(run: Records) -> Path:
    """Write every column of metrics.csv into the run's folder `tensorboard`, in place of before.

    Events carry the time that training had taken by then, so that TensorBoard's relative
    axis is the method's own clock.
    """
    if find_spec("tensorboard") is None:
        raise FedkinError("event files need TensorBoard: pip install 'fedkin[tensorboard]'")
    from torch.utils.tensorboard import SummaryWriter  # here: only where it is installed

    folder = run.path / "tensorboard"
    for old in folder.glob("events.out.tfevents*"):
        old.unlink()
    start = (run.path / "config.toml").stat().st_mtime
    clock = start + run.timing.set_index("round")["seconds"].cumsum()
    with SummaryWriter(str(folder)) as writer:
        for row in run.metrics.to_dict("records"):
            number = int(row["round"])
            for name, value in row.items():
                if name != "round" and not math.isnan(float(value)):
                    writer.add_scalar(str(name), value, number, clock.get(number, start))
    return folder
