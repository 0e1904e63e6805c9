"""What advice is made of: the answer, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedkin.data import ClientData, DataConfig
from fedkin.runs.advice_kin import Kin
from fedkin.runs.advice_scores import Gain, mean_of
from fedkin.runs.advice_shrink import Spread
from fedkin.runs.measures import Measure


@dataclass(frozen=True)
class Effort:
    """How much is computed: more for few sites, less for many. It depends on sizes alone.

    At most `choices` values of each setting are tried.
    """

    splits: int
    rounds: int
    every: int
    choices: int = 3

    @classmethod
    def for_sites(cls, sites: int) -> Effort:
        if sites <= 20:
            return cls(6, 30, 5)
        return cls(5, 30, 5) if sites <= 150 else cls(3, 20, 5)


@dataclass(frozen=True)
class Site:
    """What advice says of one site: its metric alone and together, on test rows.

    `own_gain` is what its own splits say; `gain` borrows strength from the other sites.
    """

    name: str
    rows: int
    trivial: float
    alone: float
    together: float
    gain: Gain | None
    own_gain: Gain | None
    learns_from: tuple[tuple[str, float, float], ...]
    gives: float
    group: int | None

    @property
    def verdict(self) -> str:
        return "unknown" if self.gain is None else self.gain.verdict


@dataclass(frozen=True)
class Way:
    """A way to train: its mean gain over going alone, and in how many splits it was chosen."""

    method: str
    gain: Gain | None
    value: float
    chosen: int


@dataclass(frozen=True)
class Advice:
    """The answer, in numbers; `fedkin.reports.advice_words` puts it into words.

    `decision` is alone, one (one model for all), groups (within groups) or personal. `together`
    is the method that was best of those that collaborate, also where going alone is recommended.
    `spread` is how much sites' gains differ; None where sites are judged by their own rows alone.
    """

    decision: str
    measure: Measure
    gain: Gain | None
    sites: tuple[Site, ...]
    spread: Spread | None
    ways: tuple[Way, ...]
    kin: Kin | None
    method: str
    options: Mapping[str, Any]
    model: str
    rounds: int
    together: str
    megabytes: float
    contributions: Mapping[str, Gain]
    effort: Effort
    tried: int
    diverged: int
    notes: tuple[str, ...]
    data: DataConfig | None
    example: ClientData

    @property
    def mean_trivial(self) -> float:
        """The metric of answers that need no model, a mean over sites."""
        return mean_of([site.trivial for site in self.sites])

    def count(self, verdict: str) -> int:
        return sum(site.verdict == verdict for site in self.sites)
