"""Requests and answers as Flower records: tensors as ArrayRecords, the rest as json in one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from math import inf, prod
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedkin.engines.flower.text import shown
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError

FACTS = "facts"
MOST_FACTS = 10**6  # characters


def to_records(facts: Mapping[str, Any], **groups: Mapping[str, Tensor]) -> RecordDict:
    """A message's content; each group of tensors that is not empty becomes an ArrayRecord."""
    content = RecordDict({FACTS: ConfigRecord({"json": json.dumps(facts)})})
    for group, tensors in groups.items():
        arrays = {name: Array(value.detach().cpu().numpy()) for name, value in tensors.items()}
        if arrays:
            content[group] = ArrayRecord(arrays)
    return content


def from_records(content: RecordDict, limit: float = inf) -> Message:
    """The opposite: all groups' tensors by name, and the facts. Refuses anything else, and
    more than `limit` bytes (one array may be there under many names)."""
    try:
        text = str(content.config_records[FACTS]["json"])
        if len(text) > MOST_FACTS:
            raise ValueError(f"{len(text)} characters of facts")
        facts = json.loads(text)
        arrays = [pair for record in content.array_records.values() for pair in record.items()]
        if sum(len(array.data) for _, array in arrays) > limit:
            raise ValueError(f"more than {limit / 1e6:.0f} MB")
        tensors = {name: to_tensor(array) for name, array in arrays}
    except (
        KeyError, ValueError, TypeError, EOFError, OSError, MemoryError, RecursionError,
    ) as error:  # fmt: skip
        reason = f"{type(error).__name__}: {shown(str(error))}"
        raise FedkinError(f"the message cannot be read ({reason})") from None
    if not isinstance(facts, dict):
        raise FedkinError("the message cannot be read (its facts are not a table)")
    return tensors, facts


def to_tensor(array: Array) -> Tensor:
    """An array as a tensor, after checking that its header matches its bytes."""
    stream = BytesIO(array.data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("not an array of numpy's format 1.0")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in "fiub" or prod(shape) * dtype.itemsize != len(array.data) - stream.tell():
        raise ValueError(f"array of type {dtype} and shape {shape} in {len(array.data)} bytes")
    return torch.from_numpy(np.load(BytesIO(array.data), allow_pickle=False))
