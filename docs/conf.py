"""How Sphinx builds the site: `make docs`. Nothing here needs the network."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import docstrings  # noqa: E402
import mathml  # noqa: E402
import method_pages  # noqa: E402
from pictures import NewPictures  # noqa: E402

from fedkin.version import __version__  # noqa: E402

project, author, copyright = "Fedkin", "the Fedkin authors", "the Fedkin authors"
version = release = __version__
# without the examples, pages of source code and the theme a build is quicker: tests do that
FULL = os.environ.get("FEDKIN_RUN_EXAMPLES", "1") == "1"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_gallery.gen_gallery"]
extensions += ["sphinx.ext.viewcode"] if FULL else []
exclude_patterns = ["_build", "methods/notes", "examples/**/*.ipynb", "examples/**/*.py"]
# method pages and the gallery are written at build time
method_pages.write(HERE / "methods")

html_theme = "furo" if FULL else "basic"
html_title = "Fedkin"
html_static_path = ["_static"]
html_css_files = ["fedkin.css"]
html_math_renderer = "mathml"
pygments_style, pygments_dark_style = "friendly", "monokai"

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_default_options = {"members": True, "undoc-members": False}

# the examples run in a copy, so that what they write stays out of the repository
SCRIPTS = HERE / "_build" / "scripts"
shutil.rmtree(SCRIPTS, ignore_errors=True)
shutil.copytree(HERE.parent / "examples", SCRIPTS, ignore=shutil.ignore_patterns("__pycache__"))
sphinx_gallery_conf = {
    "examples_dirs": str(SCRIPTS),
    "gallery_dirs": "examples",
    "filename_pattern": r"\.py$",
    "plot_gallery": FULL,
    "image_scrapers": ("matplotlib", NewPictures(SCRIPTS)),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "write_computation_times": False,
    "abort_on_example_error": True,
    "within_subsection_order": "FileNameSortKey",
}


def setup(app) -> None:  # type: ignore[no-untyped-def]
    """Called by Sphinx."""
    mathml.setup(app)
    docstrings.setup(app)
