"""IDX files: MNIST and the sets that share its layout."""

from __future__ import annotations

import gzip
import math
import string
import zlib
from functools import lru_cache

import numpy as np

from fedkin.data.archive import read_files
from fedkin.data.config import DataConfig
from fedkin.data.partition import Array
from fedkin.data.places import download, given, roots
from fedkin.data.pool import Pool
from fedkin.errors import FedkinError, unknown

FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker")
CLASSES: dict[str, tuple[str, ...]] = {
    "mnist": tuple(string.digits),
    "fashion-mnist": (*FASHION, "bag", "ankle boot"),
    "kmnist": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
}
# Letters whose capital and small form EMNIST counts as one class in its merged splits.
_SMALL = tuple(sorted(set(string.ascii_lowercase) - set("cijklmopsuvwxyz")))
_MERGED = (*string.digits, *string.ascii_uppercase, *_SMALL)
EMNIST: dict[str, tuple[str, ...]] = {
    "byclass": (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase),
    "bymerge": _MERGED,
    "balanced": _MERGED,
    "letters": tuple(string.ascii_lowercase),
    "digits": tuple(string.digits),
    "mnist": tuple(string.digits),
}
FOLDERS = {  # ours, torchvision's
    "mnist": ("mnist", "MNIST"),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST"),
    "kmnist": ("kmnist", "KMNIST"),
    "emnist": ("emnist", "EMNIST"),
}


def read_idx_set(config: DataConfig, rng: np.random.Generator) -> Pool:
    """MNIST, Fashion-MNIST, KMNIST or EMNIST from their official files, compressed or not.

    Where only one of the two parts is on disk, it is all there is and gets split.
    """
    if config.name == "emnist":
        subset = config.subset or "balanced"
        if subset not in EMNIST:
            raise unknown("EMNIST subset", subset, EMNIST)
        names, heads = EMNIST[subset], (f"emnist-{subset}-train", f"emnist-{subset}-test")
    else:
        subset, names, heads = "", CLASSES[config.name], ("train", "t10k")
    contents = _locate(config, heads)
    parts = [_part(contents, head, subset, names) for head in heads]
    train, test = parts
    notes = []
    if train is None or test is None:
        there, missing = heads if test is None else heads[::-1]
        notes.append(f"{config.name}: no {missing}-images on disk, so the {there}-images are split")
        train, test = train or test, None
        assert train is not None  # _locate found something
    return Pool(*train, len(names), names, test=test, notes=notes)


def _locate(config: DataConfig, heads: tuple[str, str]) -> dict[str, bytes]:
    """The files of the set by name, from the first place that has any."""
    stems = [f"{h}-{what}" for h in heads for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    wanted = {
        name
        for stem in stems
        for plain in (stem, stem.replace("-idx", ".idx"))  # some copies have a dot
        for name in (plain, plain + ".gz")
    }
    if config.path is not None:
        homes = [given(config.path)]
    else:
        homes = [root / n for root in roots(config.data_dir) for n in FOLDERS[config.name]]
    for home in homes:
        for place in (home, home / "raw", home / "gzip", home / "gzip.zip"):
            if place.exists() and (found := read_files(place, wanted)):
                return found
    if config.path is not None:
        raise FedkinError(f"'{config.path}' has no file {stems[0]}.gz; check the data's path")
    folder = download(config.name)
    return read_files(folder / "gzip.zip" if config.name == "emnist" else folder, wanted)


def _part(
    contents: dict[str, bytes], head: str, subset: str, names: tuple[str, ...]
) -> tuple[Array, Array] | None:
    """Images [n, 1, h, w] and labels of one part, or None where it is not there."""
    files = {
        what: next((f for f in sorted(contents) if f.startswith(f"{head}-{what}")), None)
        for what in ("images", "labels")
    }
    if files["images"] is None and files["labels"] is None:
        return None
    for what, file in files.items():
        if file is None:
            raise FedkinError(f"{head}-{what} is missing beside its other half; add the file")
    image_file, label_file = str(files["images"]), str(files["labels"])
    images = parse_idx(contents[image_file], image_file, 3)
    labels = parse_idx(contents[label_file], label_file, 1).astype(np.int64)
    if len(images) == 0:
        raise FedkinError(f"{image_file} has no images; download it again")
    if len(images) != len(labels):
        raise FedkinError(
            f"{image_file} has {len(images)} images but {label_file} {len(labels)} labels; "
            "they do not belong together"
        )
    if subset == "letters":  # numbered from 1
        labels -= 1
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
        raise FedkinError(f"{label_file} has labels outside the {len(names)} classes of the set")
    if subset:  # EMNIST stores its images column by column
        images = images.swapaxes(1, 2)
    return images[:, None], labels


@lru_cache(maxsize=4)  # a set's files: runs with several seeds read the same ones
def _unzipped(data: bytes) -> bytes:
    return gzip.decompress(data)


def parse_idx(data: bytes, file: str, dimensions: int) -> Array:
    """The array of bytes in an IDX file, refused unless it is whole and of the right kind."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = _unzipped(data)
        except (OSError, EOFError, zlib.error):
            raise FedkinError(f"{file} is a damaged gzip file; download it again") from None
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise FedkinError(f"{file} is not an IDX file of bytes; check that it is the right file")
    if data[3] != dimensions:
        raise FedkinError(
            f"{file} holds an array of {data[3]} dimensions instead of {dimensions}; "
            "images and labels may be swapped"
        )
    head = 4 + 4 * dimensions
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, head, 4)]
    if len(data) != head + math.prod(shape):
        raise FedkinError(
            f"{file} has {len(data)} bytes, not the {head + math.prod(shape)} its header "
            "announces: it is truncated or damaged; download it again"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=head).reshape(shape)
