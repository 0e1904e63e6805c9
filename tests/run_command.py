"""What the `fedkin` command said."""

from collections.abc import Callable
from dataclasses import dataclass

TINY = ("--data", "linear", "--num-clients", "3", "--samples", "8", "--rounds", "2", "-q")


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Fedkin = Callable[..., Said]
