"""Named files out of a folder, a zip or a tar, without unpacking anything to disk."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

from fedkin.errors import FedkinError


def read_files(place: Path, names: Collection[str]) -> dict[str, bytes]:
    """The contents of those of `names` that `place` holds, by their bare names.

    `place` is a folder, a zip or a tar.
    """
    try:
        if place.is_dir():
            return {n: (place / n).read_bytes() for n in sorted(names) if (place / n).is_file()}
        if zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as zipped:
                listed = {Path(m).name: m for m in zipped.namelist() if not m.endswith("/")}
                return {name: zipped.read(listed[name]) for name in names if name in listed}
        with tarfile.open(place) as tar:
            contents = {}
            for member in tar:  # in the order they lie: a compressed tar cannot be wound back
                if (name := Path(member.name).name) in names and (data := tar.extractfile(member)):
                    contents[name] = data.read()
            return contents
    except (
        *(OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile),
        *(RuntimeError, NotImplementedError),  # encrypted or compressed in a way unknown
    ) as error:
        raise FedkinError(f"'{place}' cannot be read ({error}); replace the file") from None
