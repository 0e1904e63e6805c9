"""What one secure sum is about: signed, so that no message can be used for another sum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedkin.engines.secure.fixed import LARGEST_BITS, SMALLEST
from fedkin.errors import FedkinError

PROTOCOL = "fedkin secure sum 1"
FEWEST = 2  # a sum of one is no sum
MOST_SITES = 1000
Facts = dict[str, Any]


def canonical(value: Any) -> bytes:
    """The one way to write something down for signing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest(*parts: bytes) -> bytes:
    """A hash of parts that cannot be shifted into one another."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()


@dataclass(frozen=True)
class Terms:
    """One sum: whose, of which request, over at least how many sites.

    `start`, `round` and `call` number the request; `request` is a hash of all that every site is
    asked to do, so that sites notice if they are not asked the same. `bits` is the fixed-point
    precision, `most` the number of sites asked.
    """

    experiment: str
    contender: str
    start: int
    round: int
    call: int
    request: str
    at_least: int
    bits: int
    most: int

    def __post_init__(self) -> None:
        numbers = (self.start, self.round, self.call, self.at_least, self.bits, self.most)
        texts = (self.experiment, self.contender, self.request)
        if not all(type(n) is int and 0 <= n < 2**62 for n in numbers):
            raise FedkinError("the terms of a secure sum cannot be read")
        if not all(isinstance(text, str) and len(text) <= 200 for text in texts):
            raise FedkinError("the terms of a secure sum cannot be read")
        if not SMALLEST <= self.bits <= LARGEST_BITS:
            raise FedkinError(f"a secure sum cannot have {self.bits} fraction bits")
        if not FEWEST <= self.at_least <= self.most <= MOST_SITES:
            raise FedkinError(
                f"a secure sum of at least {self.at_least} of {self.most} sites cannot be: it "
                f"takes {FEWEST} to {MOST_SITES}"
            )

    def facts(self) -> Facts:
        return asdict(self)

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Terms:
        try:
            return cls(**facts)
        except TypeError:
            raise FedkinError("the terms of a secure sum cannot be read") from None

    def threshold(self, sites: int) -> int:
        """How many sites must take part until the end, of those that exchanged keys.

        More than half, so that no two different lists of survivors can both be signed by
        enough sites; and never fewer than agreed.
        """
        return max(self.at_least, sites // 2 + 1)

    def first(self) -> bytes:
        """What the first message of a sum is bound to."""
        return digest(PROTOCOL.encode(), canonical(self.facts()))


def statement(stage: str, about: bytes, name: str, body: Any) -> bytes:
    """The bytes that a site signs."""
    return canonical([PROTOCOL, stage, about.hex(), name, body])
