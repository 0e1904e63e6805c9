"""Who was asked, who answered in time, late or not at all: counted per site and per round."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Visits:
    """One site's record: requests to it, its answers in time, late and unusable ones."""

    asked: int = 0
    answered: int = 0
    late: int = 0
    left_out: int = 0
    heard: float | None = None  # when something last came from it, in seconds since 1970


@dataclass
class Attendance:
    """Counts for every site since the start, and what went wrong in the current round."""

    sites: dict[str, Visits] = field(default_factory=dict)
    unanswered: Counter[str] = field(default_factory=Counter)  # of this round, by site
    late: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def of(self, site: str) -> Visits:
        return self.sites.setdefault(site, Visits())

    def heard(self, site: str) -> None:
        """Something came from a site."""
        self.of(site).heard = time.time()

    def request(self, site: str, answered: bool) -> None:
        """A request is over: its answer was there in time, or not."""
        visits = self.of(site)
        visits.asked += 1
        visits.answered += answered
        if not answered:
            self.unanswered[site] += 1

    def came_late(self, site: str) -> None:
        """An answer came after its request was over."""
        self.of(site).late += 1
        self.late[site] += 1

    def not_used(self, site: str) -> None:
        """An answer was there in time and could not be used."""
        self.of(site).left_out += 1
        self.left_out[site] += 1

    def end_round(self) -> tuple[dict[str, int], str]:
        """The round's totals for metrics.csv, and a sentence where not all went well."""
        kinds = {"unanswered": self.unanswered, "late": self.late, "left_out": self.left_out}
        totals = {name: found.total() for name, found in kinds.items()}
        titles = {"unanswered": "no answer in time from", "late": "answers that came late from",
                  "left_out": "answers left out of"}  # fmt: skip
        words = [f"{titles[name]} {_listed(found)}" for name, found in kinds.items() if found]
        for found in kinds.values():
            found.clear()
        return totals, "; ".join(words)

    def summary(self) -> list[str]:
        """A sentence for each site some of whose answers are not in the result."""
        found = []
        for name, visits in sorted(self.sites.items()):
            missing = visits.asked - visits.answered
            if missing or visits.left_out:
                late = f", {visits.late} came too late" if visits.late else ""
                bad = f", {visits.left_out} were left out" if visits.left_out else ""
                found.append(
                    f"'{name}' answered {visits.answered} of {visits.asked} requests in time"
                    f"{late}{bad}"
                )
        return found


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{site} ({count})" for site, count in sorted(counts.items()))
