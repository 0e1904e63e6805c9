"""CIFAR-10 and CIFAR-100: the "python" and binary batches, or a folder or zip of images.

The python batches are pickles, and unpickling may run anything. Here a file may use only
the operations that build dicts, lists, strings and numbers, and nothing it names is ever
looked up: the few names a batch contains are answered with stand-ins defined below, which
only remember bytes; every other operation and name is refused.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.data.archive import read_files
from fedkin.data.config import DataConfig
from fedkin.data.images import read_image_tree
from fedkin.data.partition import Array
from fedkin.data.places import download, given, roots
from fedkin.data.pool import Pool
from fedkin.errors import FedkinError

CIFAR10_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
LAYOUTS = {
    # name: training files, test file, label key, classes, label bytes before each binary image
    "cifar10": ([f"data_batch_{i}" for i in range(1, 6)], "test_batch", b"labels", 10, 1),
    "cifar100": (["train"], "test", b"fine_labels", 100, 2),
}


def read_cifar(config: DataConfig, rng: np.random.Generator) -> Pool:
    """All images of CIFAR-10 or CIFAR-100 with their official test part."""
    train_files, test_file, *_ = LAYOUTS[config.name]
    files = [*train_files, test_file]
    for place in _places(config):
        for suffix in ("", ".bin"):
            contents = read_files(place, {f + suffix for f in files})
            if contents:
                return _pool(config.name, place, contents, suffix)
    for place in _image_places(config):
        return read_image_tree(place)
    if config.path is not None:
        raise FedkinError(f"'{config.path}' has no file {files[0]}; check the data's path")
    folder = download(config.name)
    archive = next(folder.glob("*.tar.gz"))
    return _pool(config.name, archive, read_files(archive, set(files)), "")


def _places(config: DataConfig) -> Iterator[Path]:
    """Folders and archives that may hold the batches."""
    if config.path is not None:
        homes = [given(config.path)]
        if homes[0].suffix == ".zip":
            return
    else:
        homes = [home for r in roots(config.data_dir) for home in (r / config.name, r)]
    number = config.name.removeprefix("cifar")
    folders = {"10": ("batches-py", "batches-bin"), "100": ("python", "binary")}[number]
    archives = ("python.tar.gz", "binary.tar.gz")
    for home in homes:
        inside = [home / f"cifar-{number}-{what}" for what in (*folders, *archives)]
        yield from (place for place in (home, *inside) if place.exists())


def _image_places(config: DataConfig) -> Iterator[Path]:
    """Zips and folders of image files: train/<class>/*, test/<class>/*."""
    if config.path is not None:
        place = given(config.path)
        if place.suffix == ".zip" or (place / "train").is_dir():
            yield place
        return
    for root in roots(config.data_dir):
        folder = root / config.name
        yield from sorted(folder.glob("*.zip"))
        if (folder / "train").is_dir():
            yield folder


def _pool(name: str, place: Path, contents: dict[str, bytes], suffix: str) -> Pool:
    train_files, test_file, key, classes, label_bytes = LAYOUTS[name]
    parts = []
    for file in [*train_files, test_file]:
        data = contents.get(file + suffix)
        if data is None:
            raise FedkinError(f"'{place}' has no file {file}{suffix}; add it")
        where = f"{file}{suffix} in '{place}'"
        x, y = parse_binary(data, where, label_bytes) if suffix else parse_batch(data, where, key)
        if len(y) and not 0 <= y.min() <= y.max() < classes:
            raise FedkinError(f"{where} has labels outside the {classes} classes of {name}")
        parts.append((x, y))
    *train, test = parts
    names = CIFAR10_NAMES if name == "cifar10" else ()
    x, y = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
    return Pool(x, y, classes, names, test=test)


def parse_binary(data: bytes, where: str, label_bytes: int) -> tuple[Array, Array]:
    """Images and labels of a binary batch: label bytes (the last counts), then 3072 pixels."""
    row = label_bytes + 3072
    if len(data) % row:
        raise FedkinError(f"{where} is truncated: its size is no multiple of {row}; replace it")
    table = np.frombuffer(data, dtype=np.uint8).reshape(-1, row)
    images = table[:, label_bytes:].reshape(-1, 3, 32, 32)
    return images, table[:, label_bytes - 1].astype(np.int64)


def parse_batch(data: bytes, where: str, key: bytes) -> tuple[Array, Array]:
    """Images and labels of a python batch, read without running what it contains."""
    try:
        _check_operations(data)
        batch = _Harmless(io.BytesIO(data), encoding="bytes").load()
        batch = {k.encode() if isinstance(k, str) else k: v for k, v in batch.items()}
        labels = np.asarray(batch[key], dtype=np.int64)
        pixels = batch[b"data"].pixels()
    except FedkinError as error:
        raise FedkinError(f"{where} {error}") from None
    except Exception:  # a damaged pickle can fail in any way
        raise FedkinError(f"{where} is not a CIFAR batch or is damaged; replace it") from None
    if pixels.ndim != 2 or pixels.shape[1] != 3072 or labels.shape != pixels.shape[:1]:
        raise FedkinError(f"{where} does not hold one label per 32 x 32 image; replace it")
    return pixels.reshape(-1, 3, 32, 32), labels


# fmt: off
OPERATIONS = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINUNICODE",
    "SHORT_BINUNICODE", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINPUT", "LONG_BINPUT", "BINGET",
    "LONG_BINGET", "MEMOIZE", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
}
# fmt: on


def _check_operations(data: bytes) -> None:
    for operation, argument, _ in pickletools.genops(data):
        if operation.name not in OPERATIONS:
            raise FedkinError(f"asks for {operation.name}, which no CIFAR batch does; not read")
        # The place in the memo decides how much memory is taken for it.
        if operation.name == "LONG_BINPUT" and int(argument or 0) > 1_000_000:
            raise FedkinError("asks for too much memory; not read")


class _DType:
    """Stands for numpy.dtype: remembers its code."""

    def __init__(self, code: Any = b"", *_: Any) -> None:
        self.code = code.encode() if isinstance(code, str) else code

    def __setstate__(self, state: Any) -> None:
        pass  # byte order and the like: a byte has none


class _Array:
    """Stands for numpy.ndarray: remembers the pickled shape, type and bytes."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def pixels(self) -> Array:
        _, shape, dtype, fortran, data = self.state
        if dtype.code != b"u1" or math.prod(shape) != len(data):
            raise FedkinError("does not hold an array of bytes; replace it")
        flat = np.frombuffer(data, dtype=np.uint8)
        return flat.reshape(shape, order="F" if fortran else "C")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, *_: Any) -> bytes:
    return text.encode("latin1")


class _Harmless(pickle.Unpickler):
    STAND_INS = {  # noqa: RUF012
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _DType,
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.STAND_INS:
            raise FedkinError(f"asks to run {module}.{name}, which no CIFAR batch does; not read")
        return self.STAND_INS[module, name]
