"""Docstrings are plain text: shown as they are, not read as reStructuredText."""

from __future__ import annotations

import re
from typing import Any

from fedkin.methods.base import Method


def setup(app: Any) -> None:
    """Let Sphinx ask us about every docstring."""
    app.connect("autodoc-process-docstring", as_plain_text)


def as_plain_text(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """`names` become code, everything else is escaped; a method's rule is a literal block."""
    text = "\n".join(lines).strip()
    first, _, rest = text.partition("\n")
    if isinstance(thing, type) and issubclass(thing, Method) and rest.strip():
        block = [f"   {line}" for line in rest.strip("\n").splitlines()]
        lines[:] = [plain(first), "", "::", "", *block, ""]
    else:
        paragraphs = re.split(r"\n\s*\n", text)
        lines[:] = [part for p in paragraphs for part in (plain(" ".join(p.split())), "")]


def plain(text: str) -> str:
    """The text with code between double backquotes and nothing else that has a meaning."""
    pieces = re.split(r"`+([^`]+)`+", text)
    pieces[::2] = [re.sub(r"([*|\\_])", r"\\\1", piece) for piece in pieces[::2]]
    pieces[1::2] = [f"``{code}``" for code in pieces[1::2]]
    shown = ""
    for before, after in zip(pieces, [*pieces[1:], ""], strict=True):
        shown += before
        if before.startswith("``") and after[:1].isalnum():
            shown += "\\ "
    return shown
