"""`fedkin welcome`: a site that was not there gets a model from a finished run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedkin.core.federation import Federation
from fedkin.core.memory import Budget
from fedkin.core.problem import Problem
from fedkin.core.tables import Room
from fedkin.data import ClientData, DataConfig, Examples, checksum
from fedkin.data.arrays import read_arrays
from fedkin.data.config import SUFFIXES
from fedkin.data.partition import Array
from fedkin.data.split import split
from fedkin.data.tables import TARGET_NAMES, read_frame
from fedkin.engines import Embedded
from fedkin.errors import FedkinError, unknown
from fedkin.runs import checkpoint
from fedkin.runs.config import RunConfig, make_config
from fedkin.runs.contender import Contender, restore_contenders
from fedkin.runs.groups import NEWCOMERS
from fedkin.runs.inputs import INPUTS, Inputs
from fedkin.runs.models import file_name, named
from fedkin.runs.newcomers import STEPS, TABLE, Newcomers, home_lr
from fedkin.runs.provenance import BY_PYTHON, versions
from fedkin.runs.settings import parse_size
from fedkin.runs.stored import StoredRun, open_run
from fedkin.tensors import write_tensors, write_text
from fedkin.toml import to_toml

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


@dataclass(frozen=True)
class Welcomed:
    """A newcomer's folder, which `predict` and `export` take like a run's; how good its model is
    after some steps at home, next to alone; and whether its model visited hosts."""

    folder: Path
    table: pd.DataFrame
    steps: int
    hosts: bool


def welcome(
    run: Path,
    data: Path,
    name: str,
    steps: int = 10,
    lr: float | None = None,
    test_fraction: float | None = None,
) -> Welcomed:
    """Give the site with this data file a model from a finished run; nobody else's changes."""
    stored = open_run(run)
    if not NAME.fullmatch(name):
        raise FedkinError(
            f"'{name[:70]}' cannot name a site: use up to 64 letters, digits, spaces, dots, dashes"
        )
    if name in stored.inputs.clients:
        raise FedkinError(f"{run} has a client '{name}' already: it has a model of its own")
    folder = run / NEWCOMERS / name
    if folder.exists():
        raise FedkinError(f"{folder} already exists: remove it, or choose another --name")
    config = _config(stored)
    problem, hosts = _problem(stored, config)
    contender, number = _contender(stored, config, problem)
    kept = config.data.resolved()
    usual = 1 / kept.folds if kept.folds else kept.test_fraction
    share = usual if test_fraction is None else test_fraction
    client = newcomer_data(stored.inputs, data, name, config.data, share or 0.0, config.seed)
    known = None if hosts else _statistics(stored)
    found = Newcomers(contender, client, number, hosts, statistics=known)
    rate = home_lr(contender.method, lr)
    shown = sorted({k for k in STEPS if k <= steps} | {steps})
    table = found.judge(shown, rate, number)
    model = found.complete_models(steps, rate)[0]
    if not bool(torch.isfinite(model).all()):
        raise FedkinError(f"the steps at home diverged: give a smaller --lr than {rate:g}")
    _write(folder, stored, problem, model, name, table)
    return Welcomed(folder, table, steps, hosts)


def _config(stored: StoredRun) -> RunConfig:
    if stored.made_with.get("by") == BY_PYTHON:
        raise FedkinError(
            f"{stored.path} was trained in Python: use fedkin.runs.newcomers.Newcomers there"
        )
    values = {key: value for key, value in stored.settings.items() if key != "sites"}
    return make_config(values, str(stored.path / "config.toml"))


def _problem(stored: StoredRun, config: RunConfig) -> tuple[Problem, bool]:
    """The run's problem with its clients' data if they are here unchanged; else without."""
    if "sites" not in stored.settings:
        try:
            data = config.make_data()
        except FedkinError:  # the file was moved: the models are enough
            data = None
        if data is not None and checksum(data) == stored.made_with.get("data_sha256"):
            return config.make_problem(data), True
    return stored.problem, False


def _contender(stored: StoredRun, config: RunConfig, problem: Problem) -> tuple[Contender, int]:
    found, damage = checkpoint.latest(stored.path / "checkpoint")
    if found is None:
        reason = damage[0] if damage else "it has none"
        raise FedkinError(f"{stored.path} has no checkpoint to learn from: {reason}")
    method = config.make_method()
    room = Room(Budget(parse_size(config.memory)))
    fed = Federation(problem, Embedded(problem), config.seed, config.fraction, room=room)
    contender = Contender(method, fed, method.init(fed))
    tensors, numbers = found.tensors(), found.stated().numbers
    restore_contenders({"method": contender}, tensors, numbers)
    return contender, found.round


def _statistics(stored: StoredRun) -> Tensor | None:
    """What the norms of all clients' models go by, where those are averaged."""
    count = stored.problem.spec.statistics.size
    if stored.problem.norm != "averaged" or not count:
        return None
    whole = (model for form, model in stored.personal.models.values() if form is stored.problem)
    found = next(whole, None)
    return None if found is None else found[-count:]


def newcomer_data(
    inputs: Inputs, path: Path, name: str, config: DataConfig, test_fraction: float, seed: int
) -> ClientData:
    """A new site's file as one client, made ready exactly as the run's inputs were."""
    kind = SUFFIXES.get(path.suffix.lower())
    if kind not in ("csv", "parquet", "npz") or not path.is_file():
        raise FedkinError(f"'{path}' is not a .csv, .parquet or .npz file that can be read")
    where = f"'{path}'"
    if kind == "npz":
        arrays = read_arrays(str(path))
        missing = next((key for key in ("x", "y") if key not in arrays), None)
        if missing:
            raise FedkinError(f"{where} has no array '{missing}'; save it under that name")
        samples, target = arrays["x"], pd.Series(arrays["y"].reshape(len(arrays["y"]), -1)[:, 0])
    else:
        frame = read_frame(DataConfig(name=kind, path=str(path))).rename(columns=str)
        if not len(frame):
            raise FedkinError(f"{where} has no rows")
        samples, target = frame, frame[_target_column(frame, config, where)]
    x = inputs.preparation.inputs(samples, where)
    if tuple(x.shape[1:]) != inputs.input_shape:
        raise FedkinError(
            f"{where} has samples of shape {tuple(x.shape[1:])}, and the run's models take "
            f"{inputs.input_shape}"
        )
    y = _targets(target, inputs, where)
    strata = y if inputs.num_classes is not None else np.zeros(len(y), np.int64)
    train, test = split(np.arange(len(y)), strata, test_fraction, np.random.default_rng([seed, 7]))

    def part(rows: Any) -> Examples:
        return Examples.of([(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))])

    return ClientData(
        part(train), part(test), inputs.num_classes, names=(name,),
        class_names=inputs.class_names, preparation=inputs.preparation,
    )  # fmt: skip


def _target_column(frame: pd.DataFrame, config: DataConfig, where: str) -> str:
    if config.target_column is not None:
        if config.target_column not in frame:
            raise FedkinError(
                f"{unknown('target column', config.target_column, frame.columns)} in {where}"
            )
        return config.target_column
    found = next((column for column in TARGET_NAMES if column in frame), None)
    if found is None:
        raise FedkinError(f"{where} has no column named {', '.join(TARGET_NAMES)}")
    return found


def _targets(column: pd.Series[Any], inputs: Inputs, where: str) -> Array:
    """Targets as the run has them: class numbers, or numbers."""
    if column.isna().any():
        row = int(np.flatnonzero(column.isna())[0]) + 1
        raise FedkinError(f"the target of {where} is missing in row {row}; fill or drop it")
    if inputs.num_classes is None:
        numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
        if not np.isfinite(numbers).all():
            raise FedkinError(f"the target of {where} has values that are not numbers")
        values: Array = numbers.astype(np.float32)
        return values
    names = [inputs.class_name(i) for i in range(inputs.num_classes)]
    numbers = pd.to_numeric(column, errors="coerce")
    whole = numbers.notna().all() and (numbers == numbers.round()).all()
    words = numbers.astype(np.int64).map(str) if whole else column.map(str)
    known = {label: i for i, label in enumerate(names)}
    strange = next((word for word in words if word not in known), None)
    if strange is not None:
        raise FedkinError(f"{unknown('class', strange, known)} in {where}: the run never saw it")
    labels: Array = words.map(known).to_numpy(np.int64)
    return labels


def _write(
    folder: Path, stored: StoredRun, problem: Problem, model: Any, name: str, table: pd.DataFrame
) -> None:
    """The newcomer's folder: what `predict` and `export` need, and how good it is."""
    (folder / "models").mkdir(parents=True)
    table.to_csv(folder / TABLE, index=False)
    own = replace(stored.inputs, clients=(name,))
    write_text(folder / INPUTS, own.to_json())
    about = {"client": name, "rate": "1.0"}
    write_tensors(folder / "models" / file_name(0, name), named(problem.complete, model), about)
    made_with = {**versions(), "welcomed_by": str(stored.path.resolve())}
    write_text(folder / "config.toml", to_toml({**stored.settings, "made_with": made_with}))
