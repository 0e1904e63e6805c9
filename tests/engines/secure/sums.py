"""Sites and a server of secure sums in this process, with real certificates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.engines.flower.certificates import SiteFiles, make_certificates
from fedkin.engines.flower.identity import identity_of
from fedkin.engines.secure.collector import Answer, Collector, Total
from fedkin.engines.secure.crypto import Identity, Trust
from fedkin.engines.secure.party import Party
from fedkin.engines.secure.terms import Facts, Terms
from fedkin.errors import FedkinError

NAMES = ("ada", "bob", "cleo", "dan", "eve")
SIZE = 40
LAYOUT = [("dx", "float32", [SIZE])]


def make_identities(folder: Path, names: tuple[str, ...] = NAMES) -> dict[str, Identity]:
    make_certificates(folder, [], list(names))
    return {name: identity_of(name, SiteFiles.of(folder / "sites" / name))[0] for name in names}


class OnceTrust(Trust):
    """Checks a signature once for all sites of this process: the tests' time is signatures."""

    def __init__(self, authority: bytes) -> None:
        super().__init__(authority)
        self._seen: set[tuple[str, bytes, str, bytes]] = set()

    def check(self, name: str, certificate: bytes, signature: Any, content: bytes) -> None:
        if (name, certificate, signature, content) not in self._seen:
            super().check(name, certificate, signature, content)
            self._seen.add((name, certificate, signature, content))


def trust_of(folder: Path) -> Trust:
    return OnceTrust((folder / "authority.pem").read_bytes())


def terms(**changes: Any) -> Terms:
    usual: Facts = {
        "experiment": "run-1", "contender": "method", "start": 1, "round": 3, "call": 0,
        "request": "ab" * 32, "at_least": 3, "bits": 32, "most": 5,
    }  # fmt: skip
    return Terms(**{**usual, **changes})


@dataclass
class Room:
    """Sites that answer a server; `lost` are silent from a stage on, `bend` changes questions."""

    identities: dict[str, Identity]
    trust: Trust
    terms: Terms = field(default_factory=terms)
    lost: Mapping[str, str] = field(default_factory=dict)
    bend: Callable[[str, str, Facts], Facts] = lambda stage, name, facts: facts
    bend_answer: Callable[[str, str, Facts], Facts] = lambda stage, name, facts: facts

    def __post_init__(self) -> None:
        rng = np.random.default_rng(1)
        self.numbers = {
            name: rng.integers(-(2**40), 2**40, SIZE).view(np.uint64) for name in self.identities
        }
        self.parties = {name: self.party(name) for name in self.identities}
        self.said: list[tuple[str, str]] = []  # left out: who, why
        self.heard: list[tuple[str, str, Facts]] = []  # every answer that came
        self.asked: list[tuple[str, str, Facts]] = []

    def party(self, name: str, **changes: Any) -> Party:
        usual: Facts = {
            "identity": self.identities[name],
            "trust": self.trust,
            "terms": self.terms,
            "layout": LAYOUT,
            "numbers": self.numbers[name],
        }
        return Party(**{**usual, **changes})  # fmt: skip

    def ask(self, stage: str, questions: Mapping[str, Facts]) -> dict[str, Answer]:
        found: dict[str, Answer] = {}
        order = ("keys", "shares", "masked", "check", "open")
        for name, question in questions.items():
            if order.index(self.lost.get(name, "open")) <= order.index(stage) and name in self.lost:
                continue
            # through json, as over a network
            question = json.loads(json.dumps(self.bend(stage, name, question)))
            self.asked.append((stage, name, question))
            try:
                facts, words = self.parties[name].answer(stage, question)
                facts = json.loads(json.dumps(self.bend_answer(stage, name, facts)))
                self.heard.append((stage, name, facts))
                found[name] = facts, words
            except FedkinError as error:
                found[name] = str(error)
        return found

    def total(self) -> Total:
        keys = {n: a[0] for n, a in self.ask("keys", {key: {} for key in self.identities}).items()
                if not isinstance(a, str)}  # fmt: skip
        collector = Collector(
            self.terms, self.trust, self.ask, lambda name, why: self.said.append((name, why))
        )
        return collector.total(keys)

    def plain(self, names: list[str]) -> Any:
        return np.sum([self.numbers[name] for name in names], axis=0, dtype=np.uint64)
