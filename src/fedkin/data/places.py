"""Where data sets lie on disk, and how known ones get there.

Searched in this order: `data_dir`, the folder FEDKIN_DATA names, the cache (FEDKIN_CACHE,
or ~/.cache/fedkin). What the cache lacks is downloaded into it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

from fedkin.errors import FedkinError

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_KMNIST = "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"

# Per data set: address of each file and the MD5 its publishers (or torchvision) give. The sums
# guard against broken downloads; against hostile ones the readers, which run nothing they read.
REMOTE: dict[str, dict[str, str]] = {
    "mnist": {
        _MNIST + "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        _MNIST + "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        _MNIST + "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        _MNIST + "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "fashion-mnist": {
        _FASHION + "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        _FASHION + "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        _FASHION + "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        _FASHION + "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    "kmnist": {
        _KMNIST + "train-images-idx3-ubyte.gz": "bdb82020997e1d708af4cf47b453dcf7",
        _KMNIST + "train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
        _KMNIST + "t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
        _KMNIST + "t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
    },
    "emnist": {
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"
    },
    "cifar10": {_CIFAR + "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    "cifar100": {_CIFAR + "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
}


def cache_dir() -> Path:
    """Where downloads and decoded images are kept."""
    return Path(os.environ.get("FEDKIN_CACHE") or Path.home() / ".cache" / "fedkin")


def roots(data_dir: str | None) -> list[Path]:
    """The user's folders of data sets, in the order in which they are searched."""
    places = (data_dir, os.environ.get("FEDKIN_DATA"))
    return [Path(place).expanduser() for place in places if place]


def given(path: str) -> Path:
    """The path a user named, refused when nothing is there."""
    place = Path(path).expanduser()
    if not place.exists():
        raise FedkinError(f"there is no file or folder '{path}'; check the data's path")
    if not place.is_file() and not place.is_dir():  # reading it could wait for ever
        raise FedkinError(f"'{path}' is a pipe or a device: save its content to a file first")
    return place


def on_disk(name: str, data_dir: str | None = None) -> Path | None:
    """The first folder that holds something of a known data set; None if it must be downloaded.

    Names are compared and nothing is read: the folder may still lack a file.
    """
    # mnist, MNIST, FashionMNIST, cifar10, cifar-10-batches-py, cifar-10-python.tar.gz
    stem = name.replace("-", "-?").replace("cifar", "cifar-?")
    ending = r"(-batches-py|-batches-bin|-python|-binary)?(\.tar\.gz)?"
    spelled = re.compile(stem + ending, re.IGNORECASE)
    for root in roots(data_dir):
        for place in sorted(root.iterdir()) if root.is_dir() else ():
            if spelled.fullmatch(place.name) and (place.is_file() or any(place.iterdir())):
                return place
    files = [cache_dir() / name / url.rsplit("/", 1)[1] for url in REMOTE[name]]
    return cache_dir() / name if all(file.exists() for file in files) else None


def download(name: str) -> Path:
    """The cache's folder with all files of a known data set, downloaded where missing."""
    folder = cache_dir() / name
    for url, md5 in REMOTE[name].items():
        target = folder / url.rsplit("/", 1)[1]
        if not target.exists():
            _fetch(name, url, md5, target)
    return folder


def _fetch(name: str, url: str, md5: str, target: Path) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    try:
        # addresses are those of REMOTE, and what arrives has to have its checksum
        reply = urllib.request.urlopen(url, timeout=30)  # nosec B310
        with reply, replacing(target) as file:
            shutil.copyfileobj(reply, file, 1 << 20)
            file.seek(0)
            while block := file.read(1 << 20):
                digest.update(block)
            if digest.hexdigest() != md5:
                raise FedkinError(
                    f"{url} arrived damaged (MD5 {digest.hexdigest()} instead of {md5}); try again"
                )
    except (OSError, HTTPException) as error:  # URLError is an OSError
        files = ", ".join(address.rsplit("/", 1)[1] for address in REMOTE[name])
        raise FedkinError(
            f"data set '{name}' is not on this machine and {url} could not be downloaded "
            f"({_reason(error)}); put {files} into {target.parent}, or into a folder '{name}' "
            "under data_dir or FEDKIN_DATA"
        ) from None


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A file that takes `target`'s place only once it is written completely."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        try:
            yield file  # type: ignore[misc]  # the wrapper offers all of BinaryIO
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(file.name)
            raise


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)
