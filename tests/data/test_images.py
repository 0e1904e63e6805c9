"""Trees of images: decoded once, then read from the cache; a broken image is named."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedkin.data import ClientData, DataConfig, images, load
from fedkin.errors import FedkinError


def write_tree(folder: Path, parts: tuple[str, ...] = ("train", "test"), mode: str = "RGB") -> Path:
    rng = np.random.default_rng(0)
    for part in parts:
        for number, label in enumerate(("cat", "dog")):
            (folder / part / label).mkdir(parents=True)
            for i in range(12):
                shape = (8, 6, 3) if mode == "RGB" else (8, 6)
                pixels = rng.integers(0, 256, shape).astype(np.uint8)
                pixels[0, 0] = number
                Image.fromarray(pixels).save(folder / part / label / f"{i:04}.png")
    return folder


def zipped(folder: Path) -> Path:
    target = folder.with_suffix(".zip")
    with zipfile.ZipFile(target, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"pets/{file.relative_to(folder)}")
    return target


def read(path: Path, **options: Any) -> ClientData:
    config = {"name": "images", "path": str(path), "num_clients": 3, "partition": "iid"} | options
    return load(DataConfig(**config), 0)


@pytest.mark.parametrize("pack", [zipped, lambda folder: folder])
def test_folder_and_zip_give_images_classes_and_the_official_test(
    tmp_path: Path, pack: Any
) -> None:
    data = read(pack(write_tree(tmp_path / "pets")))
    assert data.input_shape == (3, 8, 6)
    assert data.class_names == ("cat", "dog")
    assert (len(data.train.y), len(data.test.y)) == (24, 24)
    assert data.global_test is not None
    assert ((data.train.x[:, 0, 0, 0] * 255).round() == data.train.y).all()


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    assert read(write_tree(tmp_path / "pets", mode="L")).input_shape == (1, 8, 6)


def test_without_train_and_test_folders_all_images_are_split(tmp_path: Path) -> None:
    data = read(write_tree(tmp_path / "pets", parts=("",)))
    assert len(data.train.y) + len(data.test.y) == 24
    assert data.global_test is None


def test_images_are_decoded_once_and_again_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zipped(write_tree(tmp_path / "pets"))
    decoded = []
    decode = images._decode
    monkeypatch.setattr(images, "_decode", lambda *a: decoded.append(1) or decode(*a))
    first, second = read(path), read(path)
    assert len(decoded) == 1
    assert (first.train.x == second.train.x).all()
    os.utime(path, ns=(1, 1))
    read(path)
    assert len(decoded) == 2


def test_a_damaged_cache_is_decoded_anew(tmp_path: Path) -> None:
    path = zipped(write_tree(tmp_path / "pets"))
    first = read(path)
    (cached,) = (tmp_path / "cache" / "images").iterdir()
    cached.write_bytes(cached.read_bytes()[:300])
    assert (read(path).train.x == first.train.x).all()


def test_an_unwritable_cache_is_reported_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDKIN_CACHE", str(tmp_path / "file"))
    assert "could not be cached" in read(write_tree(tmp_path / "pets")).notes[0]


@pytest.mark.parametrize("pack", [zipped, lambda folder: folder])
def test_a_broken_image_is_named(tmp_path: Path, pack: Any) -> None:
    folder = write_tree(tmp_path / "pets")
    broken = folder / "train" / "dog" / "0005.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(FedkinError, match=r"train/dog/0005\.png' in .* is broken"):
        read(pack(folder))


def test_an_image_of_another_size_is_named(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "pets")
    Image.new("RGB", (3, 4)).save(folder / "train" / "dog" / "0005.png")
    with pytest.raises(FedkinError, match=r"0005\.png' in .* is 3 x 4 pixels but .* 6 x 8"):
        read(folder)


def test_what_is_no_tree_of_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedkinError, match="has no images"):
        read(tmp_path / "empty")
    (tmp_path / "broken.zip").write_bytes(b"PK no zip")
    with pytest.raises(FedkinError, match="is no zip file or is damaged"):
        read(tmp_path / "broken.zip")
    with pytest.raises(FedkinError, match="need a folder or zip: set path"):
        load(DataConfig(name="images"), 0)


def test_cifar10_by_name_finds_its_zip_of_images(tmp_path: Path) -> None:
    write_tree(tmp_path / "cifar10" / "pets")
    zipped(tmp_path / "cifar10" / "pets").rename(tmp_path / "cifar10" / "cifar10-images.zip")
    data = load(DataConfig(name="cifar10", data_dir=str(tmp_path), num_clients=2), 0)
    assert data.class_names == ("cat", "dog")
