"""A folder or zip of images, train/<class>/* and test/<class>/*, decoded once and cached."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from fedkin.data.config import DataConfig
from fedkin.data.partition import Array
from fedkin.data.places import cache_dir, given, replacing
from fedkin.data.pool import Pool
from fedkin.errors import FedkinError

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


class Member(NamedTuple):
    """One image: its path inside the tree, its part (train or test) and its class."""

    path: str
    part: str
    label: str


def read_images(config: DataConfig, rng: np.random.Generator) -> Pool:
    """The images under `path` with their classes; those under test/ are the official test set."""
    if config.path is None:
        raise FedkinError("data 'images' need a folder or zip: set path")
    return read_image_tree(given(config.path))


def read_image_tree(place: Path) -> Pool:
    """Pixels and labels of all images, from the cache when the tree has not changed since."""
    if place.is_dir():
        files = {f.relative_to(place).as_posix(): f for f in place.rglob("*") if f.is_file()}
        members = _members(place, list(files))
        stats = [files[m.path].stat() for m in members]
        key = repr(
            [(m.path, s.st_size, s.st_mtime_ns) for m, s in zip(members, stats, strict=True)]
        )
        return _cached(place, members, key, lambda path: files[path].read_bytes())
    stat = place.stat()
    return _read_zip(place, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1)  # runs with several seeds read the same one
def _read_zip(place: Path, size: int, changed: int) -> Pool:
    try:
        with zipfile.ZipFile(place) as zipped:
            members = _members(place, zipped.namelist())
            return _cached(place, members, repr((size, changed)), zipped.read)
    except zipfile.BadZipFile as error:
        raise FedkinError(f"'{place}' is no zip file or is damaged ({error}); replace it") from None


def _members(place: Path, paths: list[str]) -> list[Member]:
    """The images in the tree, sorted; without train/ and test/ folders all are training images."""
    found = []
    for path in sorted(paths):
        parts = PurePosixPath(path).parts
        hidden = any(p.startswith((".", "__MACOSX")) for p in parts)
        if len(parts) < 2 or hidden or PurePosixPath(path).suffix.lower() not in SUFFIXES:
            continue
        part = parts[-3] if len(parts) > 2 and parts[-3] in ("train", "test") else ""
        found.append(Member(path, part, parts[-2]))
    if any(m.part == "train" for m in found):
        found = [m for m in found if m.part]
    if not found:
        raise FedkinError(
            f"'{place}' has no images; put them under train/<class>/ and test/<class>/"
        )
    return found


def _cached(place: Path, members: list[Member], key: str, read: Callable[[str], bytes]) -> Pool:
    names = tuple(sorted({m.label for m in members}))
    numbers = {name: i for i, name in enumerate(names)}
    labels = np.array([numbers[m.label] for m in members], dtype=np.int64)
    held_out = np.array([m.part == "test" for m in members])
    identity = hashlib.sha256(f"{place.resolve()}\n{key}".encode()).hexdigest()
    target = cache_dir() / "images" / f"{identity}.npy"
    notes = []
    try:
        pixels = np.load(target, allow_pickle=False)
        if len(pixels) != len(members):
            raise ValueError("another tree's pixels")
    except (OSError, ValueError, EOFError):  # not there, or damaged: decode (again)
        pixels = _decode(place, members, read)
        try:
            with replacing(target) as file:
                np.save(file, pixels, allow_pickle=False)
        except OSError as error:
            notes.append(f"decoded images could not be cached in {target.parent} ({error})")
    if held_out.all() or not held_out.any():
        return Pool(pixels, labels, len(names), names, notes=notes)
    test = pixels[held_out], labels[held_out]
    return Pool(pixels[~held_out], labels[~held_out], len(names), names, test=test, notes=notes)


def _decode(place: Path, members: list[Member], read: Callable[[str], bytes]) -> Array:
    """Pixels [n, channels, h, w]: grey if the first image is grey, else colour."""
    from PIL import Image

    pixels: Array | None = None
    for i, member in enumerate(members):
        try:
            with Image.open(io.BytesIO(read(member.path))) as image:
                if pixels is None:
                    mode = "L" if image.mode in ("1", "L", "I", "I;16", "F") else "RGB"
                    shape = (1 if mode == "L" else 3, image.height, image.width)
                    pixels = np.empty((len(members), *shape), dtype=np.uint8)
                values = np.asarray(image.convert(mode))
        except Exception:  # Pillow's decoders and zip members fail in many ways
            raise FedkinError(
                f"image '{member.path}' in '{place}' is broken; replace or remove it"
            ) from None
        if values.shape[:2] != pixels.shape[2:]:
            raise FedkinError(
                f"image '{member.path}' in '{place}' is {values.shape[1]} x {values.shape[0]} "
                f"pixels but the first one is {pixels.shape[3]} x {pixels.shape[2]}; "
                "bring all to one size"
            )
        pixels[i] = values[None] if mode == "L" else np.moveaxis(values, -1, 0)
    assert pixels is not None  # _members refuses an empty tree
    return pixels
