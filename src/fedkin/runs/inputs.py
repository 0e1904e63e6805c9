"""Inputs and outputs of a run's models: enough to use them without the training data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pandas as pd
import torch

from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData
from fedkin.data.describe import class_counts
from fedkin.data.preparation import Preparation
from fedkin.errors import FedkinError
from fedkin.runs import contents
from fedkin.runs.reading import from_json, read_text
from fedkin.tensors import write_text

TYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(contents.Number)}
INPUTS, LABELS = "inputs.json", "labels.csv"
EASY_TO_READ = 1000  # columns of a table


@dataclass(frozen=True)
class Inputs:
    """Clients by name, the shape of inputs and outputs, and how raw data are preprocessed."""

    clients: tuple[str, ...]
    input_shape: tuple[int, ...]
    outputs: int
    num_classes: int | None
    class_names: tuple[str, ...]
    loss: str
    dtype: str
    preparation: Preparation
    input_dtype: str = ""  # of inputs; as dtype in folders that do not say

    @property
    def input_type(self) -> torch.dtype:
        """The type of numbers that the model takes."""
        return TYPES[self.input_dtype or self.dtype]

    @property
    def number_type(self) -> torch.dtype:
        """The type of numbers that the model is made of."""
        return TYPES[self.dtype]

    @classmethod
    def of(cls, problem: Problem) -> Inputs:
        data = problem.data
        return cls(
            data.names,
            data.input_shape,
            problem.manners.output[0].numel(),
            data.num_classes,
            data.class_names,
            problem.spec.loss.name,
            str(problem.dtype).removeprefix("torch."),
            data.preparation,
            str(problem.input_dtype).removeprefix("torch."),
        )

    def to_json(self) -> str:
        facts = {**vars(self), "preparation": self.preparation.facts()}
        # json's quick encoder breaks no lines
        indent = 1 if len(self.preparation.columns or ()) <= EASY_TO_READ else None
        return json.dumps(facts, indent=indent) + "\n"

    @classmethod
    def load(cls, folder: Path) -> Inputs:
        try:
            text = read_text(folder / INPUTS)
        except FileNotFoundError:
            raise FedkinError(
                f"{folder} does not describe the inputs of its models: no {INPUTS}"
            ) from None
        return cls.from_json(text, folder / INPUTS)

    @classmethod
    def from_json(cls, text: str, where: Path) -> Inputs:
        """The opposite of `to_json`."""
        found = from_json(text, contents.INPUTS, str(where))
        values = {name: getattr(found, name) for name in contents.InputFacts.model_fields}
        return cls(**{**values, "preparation": found.preparation.preparation()})

    def class_name(self, number: int) -> str:
        return self.class_names[number] if self.class_names else str(number)


def keep_inputs(folder: Path, problem: Problem) -> None:
    """Write the description of inputs and the class counts of clients at a run's start."""
    if not (folder / INPUTS).exists():  # written last: after a kill everything is written again
        write_text(folder / LABELS, label_table(problem.data).to_csv())
        write_text(folder / INPUTS, Inputs.of(problem).to_json())


def label_table(data: ClientData) -> pd.DataFrame:
    """Training samples of every client: of each class, or in all where classes are not known."""
    index = pd.Index(data.names, name="client")
    counts = data.counts
    if counts is None and data.num_classes is not None and data.train.here:
        counts = torch.from_numpy(class_counts(data))
    if counts is None:
        table = pd.DataFrame({"samples": data.train.sizes.numpy()}, index)
    else:
        names = data.class_names or [str(c) for c in range(counts.shape[1])]
        table = pd.DataFrame(counts.numpy(), index, list(names))
    if data.groups is not None:
        table.insert(0, "(group)", data.groups.numpy())
    return table
