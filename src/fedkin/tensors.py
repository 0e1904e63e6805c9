"""Tensors in files: safetensors written and read piece by piece."""

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

from fedkin.errors import FedkinError, checked_size

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
LARGEST = 2**44  # bytes of a file of tensors, which are read row by row
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


@dataclass(frozen=True)
class Chunked:
    """A tensor to be written that does not fit in memory: its shape and an iterator of rows."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: Iterator[Tensor]


@dataclass(frozen=True)
class Stored:
    """A tensor in a file; `stored[lo:hi]` reads some of its rows, `stored[:]` all of it.

    The file is read and not memory-mapped, so that only the rows requested are in memory.
    """

    path: Path
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __getitem__(self, rows: slice) -> Tensor:
        row_shape = self.shape[1:]
        lo, hi, _ = rows.indices(self.shape[0]) if self.shape else (0, 1, 1)
        shape = (max(0, hi - lo), *row_shape) if self.shape else ()
        tensor = torch.empty(shape, dtype=self.dtype)
        if not tensor.numel():
            return tensor
        raw = tensor.view(-1).view(torch.uint8).numpy()
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.start + lo * prod(row_shape) * self.dtype.itemsize)
            read_all(file.fileno(), raw.data, file.tell())
        return tensor


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor | Chunked], facts: Mapping[str, str] | None = None
) -> str:
    """Write a safetensors file piece by piece; gives its sha256."""
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
    return digest.hexdigest()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    return {name: stored[:] for name, stored in open_tensors(path).items()}


def open_tensors(path: Path) -> dict[str, Stored]:
    """A safetensors file's tensors, read lazily; a FedkinError if it is not one."""
    read_facts(path)
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {
        name: Stored(
            path, 8 + size + about["data_offsets"][0], tuple(about["shape"]), _type(path, about)
        )
        for name, about in header.items()
    }


def read_facts(path: Path) -> dict[str, str]:
    """The facts in a safetensors file, after checking that the file is complete."""
    try:
        checked_size(path, LARGEST)
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except FileNotFoundError:
        raise FedkinError(f"there is no file {path}") from None
    except (SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise FedkinError(f"{path} is not a readable safetensors file: {reason}") from None


def _type(path: Path, about: Mapping[str, str]) -> torch.dtype:
    if about["dtype"] not in _TYPES:
        raise FedkinError(f"{path} holds numbers of type {about['dtype']}, which fedkin never uses")
    return _TYPES[about["dtype"]]


def read_all(file: int, into: memoryview, offset: int) -> None:
    """Fill a buffer from a file, however many reads it takes."""
    done = 0
    while done < len(into):
        got = os.preadv(file, [into[done:]], offset + done)
        if not got:
            raise FedkinError("a file of tensors is truncated")
        done += got


def write_all(file: int, data: memoryview, offset: int) -> None:
    """Write a buffer into a file, however many writes it takes."""
    done = 0
    while done < len(data):
        done += os.pwritev(file, [data[done:]], offset + done)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def sync(path: Path) -> None:
    """Flush a file or a folder to disk, so that it survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
