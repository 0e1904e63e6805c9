"""IDX files in every layout users have; damaged ones are named."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.data import ClientData, DataConfig, load
from fedkin.errors import FedkinError

from .conftest import WriteIdx, idx_bytes

Tiny = tuple[np.ndarray, np.ndarray]


def read(folder: Path, name: str = "mnist", **options: Any) -> ClientData:
    return load(DataConfig(name=name, data_dir=str(folder), num_clients=4, **options), 0)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("home", ["mnist", "MNIST/raw"])
def test_official_files_are_found_compressed_or_not(
    tmp_path: Path, write_idx: WriteIdx, tiny: Tiny, zipped: bool, home: str
) -> None:
    write_idx(tmp_path / home, "train", *tiny, zipped=zipped)
    write_idx(tmp_path / home, "t10k", tiny[0][:100], tiny[1][:100], zipped=zipped)
    data = read(tmp_path)
    assert data.input_shape == (1, 6, 5)
    assert (len(data.train.y), len(data.test.y)) == (200, 100)
    assert data.num_classes == 10
    assert 0 <= data.train.x.min() < data.train.x.max() <= 1
    pixel = (data.train.x[:, 0, 0, 0] * 255).round().long()
    assert (pixel == data.train.y).all()


def test_fedkin_data_is_searched(
    tmp_path: Path, write_idx: WriteIdx, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path / "fashion-mnist", "train", *tiny)
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    data = load(DataConfig(name="fashion-mnist"), 0)
    assert data.class_names[-1] == "ankle boot"


def test_with_test_images_only_they_are_split_and_said_so(
    tmp_path: Path, write_idx: WriteIdx, tiny: Tiny
) -> None:
    write_idx(tmp_path / "kmnist", "t10k", *tiny)
    data = read(tmp_path, "kmnist")
    assert len(data.train.y) + len(data.test.y) == 200
    assert data.global_test is None
    assert data.notes == ("kmnist: no train-images on disk, so the t10k-images are split",)


@pytest.mark.parametrize("packed", [True, False])
def test_emnist_is_turned_upright_and_letters_count_from_zero(
    tmp_path: Path, write_idx: WriteIdx, tiny: Tiny, packed: bool
) -> None:
    images, labels = tiny
    folder = write_idx(tmp_path / "emnist", "emnist-letters-train", images, labels + 1)
    write_idx(folder, "emnist-letters-test", images, labels + 1)
    if packed:
        with zipfile.ZipFile(folder / "gzip.zip", "w") as zipped:
            for file in folder.glob("*.gz"):
                zipped.write(file, f"gzip/{file.name}")
                file.unlink()
    data = read(tmp_path, "emnist", subset="letters", partition="iid")
    assert data.input_shape == (1, 5, 6)
    assert data.num_classes == 26
    assert set(data.train.y.tolist()) == set(range(10))


def test_emnist_subset_is_checked(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match=r"unknown EMNIST subset 'letter' \(did you mean"):
        read(tmp_path, "emnist", subset="letter")


def test_path_points_at_the_folder_itself(tmp_path: Path, write_idx: WriteIdx, tiny: Tiny) -> None:
    write_idx(tmp_path / "elsewhere", "train", *tiny)
    config = DataConfig(name="mnist", path=str(tmp_path / "elsewhere"), num_clients=3)
    assert load(config, 0).num_clients == 3


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda x, y: (gzip.compress(idx_bytes(x))[:-50], None), "damaged gzip file"),
        (lambda x, y: (idx_bytes(x)[:-7], None), "truncated or damaged"),
        (lambda x, y: (idx_bytes(x) + b"123", None), "truncated or damaged"),
        (lambda x, y: (idx_bytes(x)[:9], None), "truncated or damaged"),
        (lambda x, y: (b"<html>not found</html>", None), "is not an IDX file"),
        (lambda x, y: (b"", None), "is not an IDX file"),
        (lambda x, y: (idx_bytes(y), idx_bytes(x)), "1 dimensions instead of 3.*swapped"),
        (lambda x, y: (idx_bytes(x[:150]), None), "150 images but .* 200 labels"),
        (lambda x, y: (None, idx_bytes(y + 1)), "labels outside the 10 classes"),
        (lambda x, y: (idx_bytes(x[:0]), idx_bytes(y[:0])), "has no images"),
    ],
)
def test_truncated_and_mislabelled_files_are_refused_by_name(
    tmp_path: Path, write_idx: WriteIdx, tiny: Tiny, damage: Any, sentence: str
) -> None:
    folder = write_idx(tmp_path / "mnist", "train", *tiny, zipped=False)
    for what, content in zip(("images-idx3", "labels-idx1"), damage(*tiny), strict=True):
        if content is not None:
            (folder / f"train-{what}-ubyte").write_bytes(content)
    with pytest.raises(FedkinError, match=sentence) as error:
        read(tmp_path)
    assert "train-" in str(error.value)


def test_half_a_pair_is_refused(tmp_path: Path, write_idx: WriteIdx, tiny: Tiny) -> None:
    folder = write_idx(tmp_path / "mnist", "train", *tiny)
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FedkinError, match="train-labels is missing"):
        read(tmp_path)


def test_a_folder_without_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="has no file train-images-idx3-ubyte"):
        load(DataConfig(name="mnist", path=str(tmp_path)), 0)
    with pytest.raises(FedkinError, match="there is no file or folder"):
        load(DataConfig(name="mnist", path=str(tmp_path / "nowhere")), 0)


def test_real_kmnist_test_part_serves_the_unified_papers_setting(real_data: Path) -> None:
    config = DataConfig(
        name="kmnist",
        data_dir=str(real_data),
        partition="classes",
        classes_per_client=4,
        train_per_client=100,
        test_per_client=300,
        test_fraction=0.75,
        standardise=True,
        unit_norm=True,
    )
    data = load(config, 0)
    assert data.train.sizes.tolist() == [100] * 20
    assert data.test.sizes.tolist() == [300] * 20
    assert data.input_shape == (1, 28, 28)


def test_real_mnist_has_its_official_sizes(real_data: Path) -> None:
    data = load(DataConfig(name="mnist", data_dir=str(real_data)), 0)
    assert data.global_test is not None
    assert (len(data.train.y), len(data.global_test[1])) == (60_000, 10_000)
    # The published mean of the training pixels.
    assert float(data.train.x.mean()) == pytest.approx(0.1307, abs=1e-4)
