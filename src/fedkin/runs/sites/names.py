"""Names of sites, experiments and contenders: what may be one, also as the name of a file."""

from __future__ import annotations

import re

from fedkin.engines.flower.text import shown
from fedkin.errors import FedkinError

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


def check_name(name: str) -> None:
    if not re.fullmatch(NAME, name):
        raise FedkinError(f"{name!r} cannot be a site's name: letters, digits, . _ - only")


def safe(name: str) -> str:
    """A name from the server, checked to be safe as a file name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise FedkinError(
            f"'{shown(name, 100)}' cannot be the name of an experiment or a contender"
        )
    return name
