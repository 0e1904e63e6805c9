"""Writes docs/methods.md from the methods' own docstrings: `python docs/generate.py`."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from pathlib import Path

from fedkin.methods.registry import all_methods

PAGE = Path(__file__).with_name("methods.md")
HEAD = """# The methods

Every method by the name it has on the command line, with its rule and its settings. This
page is written by `python docs/generate.py` from the docstrings in `src/fedkin/methods/`.
Inside the rules: x is the model for all, v_i or theta_i client i's own, g_i a minibatch
gradient of its loss f_i, S the clients of a round, N all clients, K the local steps.
"""


def methods_page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, cls in all_methods().items():
        settings = ", ".join(f"`{f.name}` = {_default(f)}" for f in fields(cls))
        text = inspect.cleandoc(cls.__doc__ or "")
        parts.append(f"## {name}\n\n```text\n{text}\n```\n\nSettings: {settings}.\n")
    return "\n".join(parts)


def _default(field) -> str:  # type: ignore[no-untyped-def]
    value = field.default if field.default is not MISSING else field.default_factory()
    return "none" if value is None else str(value)


if __name__ == "__main__":
    PAGE.write_text(methods_page(), encoding="utf-8")
