"""CIFAR in its python and binary batches; a pickle that would run something is refused."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.data import ClientData, DataConfig, load
from fedkin.data.cifar import parse_batch
from fedkin.errors import FedkinError

FILES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def rows(seed: int, classes: int = 10, count: int = 20) -> tuple[np.ndarray, list[int]]:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3072)).astype(np.uint8)
    return pixels, [i % classes for i in range(count)]


def python_2(batch: dict[str, Any]) -> bytes:
    """As Python 2 and its NumPy wrote it: protocol 2, byte strings, numpy.core."""
    text = pickle.dumps({k.encode(): v for k, v in batch.items()}, protocol=2)
    return text.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def write_python(folder: Path) -> None:
    folder.mkdir(parents=True)
    for seed, file in enumerate(FILES):
        pixels, labels = rows(seed)
        (folder / file).write_bytes(python_2({"data": pixels, "labels": labels}))


def read(folder: Path, name: str = "cifar10", **options: Any) -> ClientData:
    config = {"name": name, "data_dir": str(folder), "num_clients": 4, "partition": "iid"} | options
    return load(DataConfig(**config), 0)


@pytest.mark.parametrize("home", ["cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10"])
def test_python_batches_are_read(tmp_path: Path, home: str) -> None:
    write_python(tmp_path / home)
    data = read(tmp_path)
    assert data.input_shape == (3, 32, 32)
    assert (len(data.train.y), len(data.test.y)) == (100, 20)
    assert data.class_names[:2] == ("airplane", "automobile")
    assert data.global_test is not None
    first = rows(5)[0][0].reshape(3, 32, 32) / 255
    assert data.global_test[0][0].numpy() == pytest.approx(first, abs=1e-6)


def test_the_official_archive_is_read_without_unpacking(tmp_path: Path) -> None:
    write_python(tmp_path / "cifar-10-batches-py")
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    data = load(DataConfig(name="cifar10", path=str(tmp_path / "cifar-10-python.tar.gz")), 0)
    assert len(data.train.y) == 100


def test_binary_batches_give_the_same_samples(tmp_path: Path) -> None:
    write_python(tmp_path / "a" / "cifar-10-batches-py")
    (tmp_path / "b" / "cifar-10-batches-bin").mkdir(parents=True)
    for seed, file in enumerate(FILES):
        pixels, labels = rows(seed)
        content = np.column_stack([np.array(labels, np.uint8), pixels]).tobytes()
        (tmp_path / "b" / "cifar-10-batches-bin" / f"{file}.bin").write_bytes(content)
    assert (read(tmp_path / "a").train.x == read(tmp_path / "b").train.x).all()


def test_cifar100_uses_the_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for file in ("train", "test"):
        pixels, labels = rows(1, 100, 200)
        batch = {"data": pixels, "fine_labels": labels, "coarse_labels": [0] * 200}
        (folder / file).write_bytes(python_2(batch))
    data = read(tmp_path, "cifar100")
    assert data.num_classes == 100
    assert len(data.train.y.unique()) == 100


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_batches_written_by_python_2_and_3_are_read(protocol: int) -> None:
    pixels, labels = rows(0)
    content = pickle.dumps({"data": pixels, "labels": labels}, protocol=protocol)
    x, y = parse_batch(content, "batch", b"labels")
    assert (x.reshape(-1, 3072) == pixels).all()
    assert y.tolist() == labels


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return io.open, ("attacked", "w")


def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path / "cifar10")
    content = pickle.dumps({b"data": Attack(), b"labels": []}, protocol=2)
    (tmp_path / "cifar10" / "data_batch_3").write_bytes(content)
    with pytest.raises(FedkinError, match=r"data_batch_3 .* asks to run .*open"):
        read(tmp_path)
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize(
    "call",
    [
        b"cos\nsystem\n(S'touch attacked'\ntR.",
        b"cbuiltins\neval\n(U\x011tR.",
        b"(U\x011ios\nsystem\n.",
        b"\x80\x02}r\xff\xff\xff\x7f.",
        b"\x80\x05\x96\xff\xff\xff\x7f\x00\x00\x00\x00.",
    ],
)
def test_hand_written_attacks_are_refused(call: bytes) -> None:
    with pytest.raises(FedkinError, match=r"asks (to run|for)|damaged"):
        parse_batch(call, "batch", b"labels")


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ({"data": np.zeros((20, 3072)), "labels": [0] * 20}, "does not hold an array of bytes"),
        ({"data": np.zeros((20, 30), np.uint8), "labels": [0] * 20}, "one label per 32 x 32"),
        ({"data": np.zeros((20, 3072), np.uint8), "labels": [0] * 19}, "one label per 32 x 32"),
        ({"data": np.zeros((20, 3072), np.uint8)}, "is not a CIFAR batch"),
        ({"data": np.zeros((20, 3072), np.uint8), "labels": [10] * 20}, "outside the 10 classes"),
        ([1, 2], "is not a CIFAR batch"),
    ],
)
def test_batches_with_other_contents_are_refused(tmp_path: Path, batch: Any, sentence: str) -> None:
    write_python(tmp_path / "cifar10")
    content = python_2(batch) if isinstance(batch, dict) else pickle.dumps(batch)
    (tmp_path / "cifar10" / "test_batch").write_bytes(content)
    with pytest.raises(FedkinError, match=sentence):
        read(tmp_path)


def test_truncated_and_missing_batches_are_named(tmp_path: Path) -> None:
    write_python(tmp_path / "cifar10")
    batch = tmp_path / "cifar10" / "data_batch_2"
    batch.write_bytes(batch.read_bytes()[:500])
    with pytest.raises(FedkinError, match=r"data_batch_2 .* damaged"):
        read(tmp_path)
    batch.unlink()
    with pytest.raises(FedkinError, match="has no file data_batch_2"):
        read(tmp_path)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(b"\x1f\x8b damaged")
    with pytest.raises(FedkinError, match="cannot be read"):
        read(tmp_path)
