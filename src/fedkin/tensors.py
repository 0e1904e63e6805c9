"""Tensors in files: safetensors written as a stream, atomically, with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedkin.errors import FedkinError

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Chunked:
    """A tensor too large to hold: its shape, and its rows piece by piece."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: Iterator[Tensor]


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor | Chunked], facts: Mapping[str, str] | None = None
) -> str:
    """Write a safetensors file piece by piece and flush it to disk; gives its sha256."""
    header: dict[str, object] = {"__metadata__": dict(facts)} if facts else {}
    start = 0
    for name, tensor in tensors.items():
        size = prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, start + size],
        }
        start += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in (len(text).to_bytes(8, "little"), text):
            file.write(part)
            digest.update(part)
        for tensor in tensors.values():
            for piece in tensor.pieces if isinstance(tensor, Chunked) else (tensor,):
                raw = piece.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
                file.write(raw)
                digest.update(raw)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def open_tensors(path: Path) -> safe_open:
    """A safetensors file to read from piece by piece; a plain sentence when it is none."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise FedkinError(f"there is no file {path}") from None
    except (SafetensorError, OSError) as error:
        raise FedkinError(f"{path} is not a readable safetensors file: {error}") from None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
