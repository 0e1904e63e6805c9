"""Requests and answers as bytes: tensors as safetensors, the rest as json in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedkin.errors import FedkinError

HEADER = "fedkin"


def pack(tensors: Mapping[str, Tensor], **facts: Any) -> bytes:
    """One message: named tensors and json facts."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return save(plain, metadata={HEADER: json.dumps(facts)})


def unpack(message: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The opposite of `pack`."""
    try:
        size = int.from_bytes(message[:8], "little")
        facts = json.loads(json.loads(message[8 : 8 + size])["__metadata__"][HEADER])
        return load(message), facts
    except (SafetensorError, ValueError, KeyError) as error:
        raise FedkinError(f"a message cannot be read: {error}") from None


def payload(message: bytes) -> int:
    """How many of a message's bytes are tensors (and not its header)."""
    return len(message) - 8 - int.from_bytes(message[:8], "little")


def plain_number(value: Any) -> Any:
    """A hyper-parameter as json can carry it."""
    return value.item() if isinstance(value, np.generic) else value
