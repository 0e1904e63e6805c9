"""Known data sets download with a checksum; without network the error says what to put where."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fedkin.data import DataConfig, load, places
from fedkin.errors import FedkinError

from .conftest import WriteIdx
from .test_idx import Tiny


@pytest.fixture
def remote(
    tmp_path: Path, write_idx: WriteIdx, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """MNIST offered by this machine's own disk instead of the network."""
    folder = write_idx(tmp_path / "remote", "train", *tiny)
    write_idx(folder, "t10k", *tiny)
    files = {f.as_uri(): hashlib.md5(f.read_bytes()).hexdigest() for f in sorted(folder.iterdir())}
    monkeypatch.setitem(places.REMOTE, "mnist", files)
    return files


def test_a_known_set_is_downloaded_once_into_the_cache(
    tmp_path: Path, remote: dict[str, str]
) -> None:
    assert len(load(DataConfig(name="mnist"), 0).train.y) == 200
    cached = sorted(f.name for f in (tmp_path / "cache" / "mnist").iterdir())
    assert cached == sorted(url.rsplit("/", 1)[1] for url in remote)
    for file in (tmp_path / "remote").iterdir():
        file.unlink()
    assert len(load(DataConfig(name="mnist"), 0).train.y) == 200


def test_a_damaged_download_is_refused_and_not_kept(tmp_path: Path, remote: dict[str, str]) -> None:
    damaged = tmp_path / "remote" / "train-images-idx3-ubyte.gz"
    damaged.write_bytes(b"a page that says sorry")
    with pytest.raises(FedkinError, match=r"train-images-idx3-ubyte\.gz arrived damaged"):
        load(DataConfig(name="mnist"), 0)
    assert "train-images-idx3-ubyte.gz" not in {
        f.name for f in (tmp_path / "cache" / "mnist").iterdir()
    }
    assert len(list((tmp_path / "cache" / "mnist").iterdir())) == 2  # the t10k pair, no scraps


def test_without_network_the_error_says_which_files_to_put_where(
    tmp_path: Path, remote: dict[str, str]
) -> None:
    for file in (tmp_path / "remote").iterdir():
        file.unlink()
    with pytest.raises(FedkinError) as error:
        load(DataConfig(name="mnist"), 0)
    sentence = str(error.value)
    assert "could not be downloaded" in sentence
    assert "train-labels-idx1-ubyte.gz" in sentence
    assert str(tmp_path / "cache" / "mnist") in sentence
    assert "FEDKIN_DATA" in sentence
    assert "\n" not in sentence


def test_every_known_set_has_checksums() -> None:
    sums = [md5 for files in places.REMOTE.values() for md5 in files.values()]
    assert all(len(md5) == 32 and int(md5, 16) for md5 in sums)


def test_a_file_takes_its_place_only_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def interrupted() -> None:
        with places.replacing(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
