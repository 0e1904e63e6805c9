"""TOML as config files use it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.errors import FedkinError, checked_size

LONGEST = 2**22  # bytes of a config; they are a few thousand


def to_toml(values: Mapping[str, Any]) -> str:
    """Nested values as TOML; what is None is left out."""
    return tomli_w.dumps(_plain(dict(values)))


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's values; a FedkinError if it cannot be read."""
    try:
        checked_size(path, LONGEST)
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FedkinError(f"there is no file {path}") from None
    except (ValueError, RecursionError) as error:  # TOML's and UTF-8's errors are ValueErrors
        raise FedkinError(f"{path} is not valid TOML: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value
