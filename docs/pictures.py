"""The pictures that an example writes to disk, for the gallery."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst


class NewPictures:
    """Every PNG file that appeared below a folder, outside run folders, since the last look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[Path] = set()

    def __repr__(self) -> str:  # no address in it: Sphinx compares settings between builds
        return "NewPictures()"

    def __call__(self, block: Any, block_vars: dict[str, Any], gallery_conf: Any) -> str:
        shown = []
        for path in sorted(self.folder.rglob("*.png")):
            if path not in self.seen and "runs" not in path.relative_to(self.folder).parts:
                self.seen.add(path)
                shown.append(next(block_vars["image_path_iterator"]))
                shutil.copyfile(path, shown[-1])
        return figure_rst(shown, gallery_conf["src_dir"]) if shown else ""
