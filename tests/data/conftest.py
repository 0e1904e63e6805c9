"""Small stand-ins for the data sets' official files; the real ones only where they lie."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve()
WriteIdx = Callable[..., Path]


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache, nor sees the user's data by accident."""
    monkeypatch.setenv("FEDKIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDKIN_DATA", raising=False)


# Read before any test's environment is changed.
_REAL = Path(os.environ.get("FEDKIN_DATA") or HERE.parents[3] / "shared" / "data")


@pytest.fixture
def real_data() -> Path:
    if not _REAL.is_dir():
        pytest.skip(f"needs the real data sets in {_REAL} (or where FEDKIN_DATA points)")
    return _REAL


def idx_bytes(array: np.ndarray) -> bytes:
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.astype(np.uint8).tobytes()


@pytest.fixture
def write_idx() -> WriteIdx:
    """Write images and labels of one part as an IDX pair; `head` is train, t10k, ..."""

    def write(
        folder: Path, head: str, images: np.ndarray, labels: np.ndarray, zipped: bool = True
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for what, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx_bytes(array)
            name = f"{head}-{what}-ubyte" + (".gz" if zipped else "")
            (folder / name).write_bytes(gzip.compress(content) if zipped else content)
        return folder

    return write


@pytest.fixture
def tiny() -> tuple[np.ndarray, np.ndarray]:
    """200 images of 6 x 5 with ten classes, each image's first pixel telling its class."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 20)
    images = rng.integers(0, 256, (200, 6, 5)).astype(np.uint8)
    images[:, 0, 0] = labels
    return images, labels
