"""`fedkin serve --every 1d`: one run after the other, each from where the last one ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.runs.training import Trainer
from fedkin.tensors import read_tensors, write_tensors

START = "start.safetensors"
UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def seconds_of(text: str) -> float:
    """How long '1d', '12h', '30min' or '90s' is."""
    found = re.fullmatch(r"(\d{1,6})(s|min|h|d)", text.strip())
    if found is None or int(found[1]) == 0:
        raise FedkinError(f"'{text}' is not a time: write 1d, 12h, 30min or 90s")
    return float(int(found[1]) * UNITS[found[2]])


def repeat(
    run: Callable[[Tensor | None], Tensor | None],
    every: float,
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> NoReturn:
    """Run again and again until a signal ends it; `run` takes and gives the model to start from.

    A run that fails is told of; the next one starts from the last model there was. One that takes
    longer than the time between two is followed by the next at once.
    """
    model, begun = None, clock()
    while True:
        try:
            found = run(model)
            model = model if found is None else found
        except FedkinError as error:
            say(f"this run failed: {error}")
        begun = max(begun + every, clock())
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begun))
        say(f"the next run begins at {moment} (Ctrl-C: stop)")
        wait(max(0.0, begun - clock()))


def model_of(trainer: Trainer) -> Tensor | None:
    """What the next run can start from: the model for all, where the method has one."""
    contender = trainer.contenders["method"]
    shared = contender.method.global_model(contender.state)
    whole = shared is not None and shared.shape == trainer.problem.initial[0].shape
    return shared if whole else None


def keep_start(folder: Path, model: Tensor) -> None:
    """Into a new run's folder, so that it is there when the run is resumed."""
    write_tensors(folder / START, {"x": model})


def warm_start(folder: Path, problem: Problem) -> None:
    """Begin with the model in the folder, where there is one."""
    if not (folder / START).is_file():
        return
    model = read_tensors(folder / START)["x"].to(problem.initial)
    if model.shape != problem.initial[0].shape:
        raise FedkinError(f"{folder / START} is not a model of this run: remove it to start anew")
    problem.initial = model[None].clone()
