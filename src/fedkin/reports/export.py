"""A client's model outside fedkin: as a file for other programs, and as predictions."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedkin.core.kernels.spec import outputs_of
from fedkin.core.losses import LOSSES
from fedkin.data.arrays import read_arrays
from fedkin.data.columns import CategoryColumn, DateColumn
from fedkin.data.config import DataConfig
from fedkin.data.partition import Array
from fedkin.data.places import given
from fedkin.data.tables import read_frame
from fedkin.errors import FedkinError, unknown
from fedkin.reports.prepared import Prepared, own_units, probabilities
from fedkin.runs.inputs import INPUTS, Inputs
from fedkin.runs.run import PersonalModels
from fedkin.tensors import write_tensors

# a batch of this size stands for any
EXAMPLES = 2


class OutputsOnly(nn.Module):
    """A module whose outputs are a tensor, around one that may give them as `logits`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return outputs_of(self.module, x)


class Source(Protocol):
    """What models are taken from: a run, or a site's own file."""

    @property
    def inputs(self) -> Inputs: ...

    @property
    def personal(self) -> PersonalModels: ...


class OwnUnits(nn.Module):
    """A model of numbers whose answers are in the target's own units."""

    def __init__(self, module: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.module, self.inputs = module, inputs

    def forward(self, x: Tensor) -> Tensor:
        return own_units(self.module(x), self.inputs)


def export(run: Source, client: int, to: str) -> Path:
    """Write the model of the client at a place to a file whose ending says how; gives the file.

    `.safetensors`: the parameters by name. `.pt2`: the whole model by torch.export, for any
    batch size, which takes inputs made ready. `.onnx`: for other runtimes, with the preparation
    of raw inputs, and the classes' names and probabilities. Both give numbers in the target's
    own units.
    """
    path = Path(to if Path(to).suffix else f"client-{client}.{to}")
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    if not path.parent.is_dir():
        raise FedkinError(f"there is no folder {path.parent} to write {path.name} to")
    module = run.personal.at(client).eval()
    FORMATS[kind](module, run.inputs, path)
    return path


def _safetensors(module: nn.Module, inputs: Inputs, path: Path) -> None:
    write_tensors(path, module.state_dict(), {"inputs": inputs.to_json()})


def _pt2(module: nn.Module, inputs: Inputs, path: Path) -> None:
    batch = torch.export.Dim("batch", min=1)
    module = OutputsOnly(module)
    if inputs.num_classes is None and inputs.preparation.target is not None:
        module = OwnUnits(module, inputs)
    program = torch.export.export(module.eval(), (_example(inputs),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path, extra_files={INPUTS: inputs.to_json()})


def _onnx(module: nn.Module, inputs: Inputs, path: Path) -> None:
    for package in ("onnx", "onnxscript"):
        if find_spec(package) is None:
            raise FedkinError(
                f"writing ONNX needs the package {package}: pip install 'fedkin[onnx]'"
            )
    import onnx

    prepared = Prepared(OutputsOnly(module), inputs).eval()
    outputs = ["prediction"] if inputs.num_classes is None else ["label", "probabilities"]
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # what torch lacks, and will change, is not the user's concern
    try:
        with warnings.catch_warnings(action="ignore"):
            torch.onnx.export(
                prepared,
                (prepared.example(EXAMPLES),),
                path,
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=["inputs"],
                output_names=outputs,
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            )
    finally:
        log.setLevel(level)
    written = onnx.load(path)
    onnx.helper.set_model_props(written, {"fedkin": json.dumps(prepared.facts())})
    onnx.save(written, path)


FORMATS: dict[str, Callable[[nn.Module, Inputs, Path], None]] = {
    "safetensors": _safetensors,
    "pt2": _pt2,
    "onnx": _onnx,
}


def _example(inputs: Inputs) -> Tensor:
    return torch.zeros(EXAMPLES, *inputs.input_shape, dtype=inputs.input_type)


# predictions ----------------------------------------------------------------------------


def predict(run: Source, client: int, path: Path) -> pd.DataFrame:
    """What the model of the client at a place says about the samples of a file, one row each.

    The samples are raw, as they were before training; they are made ready just as the
    training data were. Classes come with the probability of each, numbers in their own units.
    """
    inputs = run.inputs
    samples = torch.from_numpy(read_samples(inputs, path)).to(inputs.input_type)
    module = run.personal.at(client).eval()
    with torch.no_grad():
        outputs = torch.cat([outputs_of(module, part) for part in samples.split(1024)])
    if inputs.num_classes is None:
        columns = own_units(outputs.double(), inputs).flatten(1).T.tolist()
        names = ["prediction"] if len(columns) == 1 else range(len(columns))
        return pd.DataFrame(dict(zip(names, columns, strict=True)))
    loss = LOSSES.get(inputs.loss, LOSSES["cross-entropy"])
    numbers = loss.predict(outputs)
    found: dict[str, list[Any]] = {"prediction": [inputs.class_name(c) for c in numbers.tolist()]}
    if inputs.loss in LOSSES and loss.probabilities:
        shares = probabilities(outputs, inputs)
        found["probability"] = shares.gather(1, numbers[:, None])[:, 0].tolist()
        for c, own in enumerate(shares.T.tolist()):
            found[f"probability of {inputs.class_name(c)}"] = own
    return pd.DataFrame(found)


def read_samples(inputs: Inputs, path: Path) -> Array:
    """The samples of a csv, parquet or npz file as a model's inputs."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("csv", "parquet", "npz"):
        raise FedkinError(f"'{path}' cannot be read: give a .csv, .parquet or .npz file")
    where = f"'{path}'"
    if inputs.preparation.columns is not None:
        frame = _table(inputs, path, kind)
        if frame.empty:
            raise FedkinError(f"{where} has no rows")
        return inputs.preparation.inputs(frame, where)
    if kind == "npz":
        arrays = read_arrays(str(path))
        if "x" not in arrays:
            raise FedkinError(f"{where} has no array 'x'")
        values = arrays["x"]
    else:
        values = _numbers(path, kind)
    shape = (len(values), *inputs.input_shape)
    if values.size != np.prod(shape) or not len(values):
        raise FedkinError(
            f"{where} has samples of {values[0].size if len(values) else 0} numbers, but the model "
            f"takes inputs of shape {inputs.input_shape}"
        )
    return inputs.preparation.inputs(values.reshape(shape), where)


def _table(inputs: Inputs, path: Path, kind: str) -> pd.DataFrame:
    """A table whose categories are words, even where a file's happen to look like numbers."""
    columns = inputs.preparation.columns or ()
    words = {c.name: str for c in columns if isinstance(c, CategoryColumn | DateColumn)}
    return read_frame(DataConfig(name=kind, path=str(path)), dtype=words).rename(columns=str)


def _numbers(path: Path, kind: str) -> Array:
    """A file that is numbers only; a first row of names is passed over."""
    config = DataConfig(name=kind, path=str(path))
    if kind == "parquet":
        frame = read_frame(config)
    else:
        with given(str(path)).open(encoding="utf-8", errors="replace") as file:
            first = file.readline().strip().split(",")
        named = not all(word.strip().lstrip("+-").replace(".", "", 1).isdigit() for word in first)
        frame = read_frame(config, header=0 if named else None)
    try:
        values: Array = frame.to_numpy(dtype=np.float64)
    except (TypeError, ValueError):
        raise FedkinError(f"'{path}' has words where the model takes numbers") from None
    if not np.isfinite(values).all():
        raise FedkinError(f"'{path}' has missing or infinite values")
    return values
