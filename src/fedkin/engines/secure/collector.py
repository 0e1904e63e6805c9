"""The server's part in one secure sum: it passes messages on, and gets the sum and no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedkin.engines.secure import shamir
from fedkin.engines.secure.crypto import KEY_BYTES, Trust, public_of
from fedkin.engines.secure.fixed import Words, size_of
from fedkin.engines.secure.party import (
    Member,
    hash_of,
    pair_mask,
    read_member,
    self_mask,
    session_of,
)
from fedkin.engines.secure.terms import Facts, Terms, canonical, digest, statement
from fedkin.errors import FedkinError

# a site's answer, numbers with it where it sent some; or why there is none
Answer = tuple[Facts, Words | None] | str
Ask = Callable[[str, dict[str, Facts]], Mapping[str, Answer]]


class TooFewError(FedkinError):
    """A sum that could not be finished: too few sites were left."""


@dataclass(frozen=True)
class Total:
    """The sum modulo 2^64 of the numbers of some sites."""

    words: Words
    sites: list[str]


class Collector:
    """Asks stage by stage; sites that do not answer or answer wrongly are left out.

    `leave_out` is told of every site whose answer cannot be used, and why.
    """

    def __init__(
        self, terms: Terms, trust: Trust, ask: Ask, leave_out: Callable[[str, str], None]
    ) -> None:
        self.terms, self.trust, self.ask, self.leave_out = terms, trust, ask, leave_out
        self._members: dict[str, Member] = {}
        self._session = b""

    def members(self, keys: Mapping[str, Facts]) -> dict[str, Member]:
        """Those whose keys are signed as they must be, with answers of the commonest shape."""
        found = {}
        for name in sorted(keys):
            try:
                found[name] = read_member(name, keys[name], self.terms, self.trust)
            except FedkinError as error:
                self.leave_out(name, str(error))
        shapes = [canonical(member.layout) for member in found.values()]
        usual = max(shapes, key=shapes.count, default=b"")
        for name in [name for name, m in found.items() if canonical(m.layout) != usual]:
            self.leave_out(name, "its answer has another shape than most sites'")
            del found[name]
        return found

    def total(self, keys: Mapping[str, Facts]) -> Total:
        """The sum over the sites that sent these keys and stay long enough."""
        self._members = self.members(keys)
        self._need(self._members, "sent keys")
        self._session = session_of(self.terms, self._members)
        listed = {"keys": {name: keys[name] for name in self._members}}
        shares = self._round("shares", dict.fromkeys(self._members, listed), self._read_shares)
        self._need(shares, "sent shares")
        given: dict[str, Facts] = {
            name: {"shares": {v: s["sealed"][name] for v, s in shares.items() if v != name}}
            for name in shares
        }
        masked = self._round("masked", given, self._read_masked(sorted(shares)))
        self._need(masked, "sent numbers")
        alive, dead = sorted(masked), sorted(set(shares) - set(masked))
        signed = self._round("check", {n: {"alive": alive} for n in alive}, self._read_check(alive))
        self._need(signed, "signed the list")
        question: Facts = {"alive": alive, "dead": dead, "signed": signed}
        opened = self._round("open", dict.fromkeys(signed, question), self._read_open(alive, dead))
        self._need(opened, "sent their shares of the masks")
        return Total(self._unmasked(masked, shares, opened, alive, dead), alive)

    def _round(
        self,
        stage: str,
        questions: dict[str, Facts],
        read: Callable[[str, Facts, Words | None], Any],
    ) -> dict[str, Any]:
        """What each site answered, as far as it can be used."""
        found = {}
        for name, answer in sorted(self.ask(stage, questions).items()):
            try:
                if isinstance(answer, str):
                    raise FedkinError(answer)
                found[name] = read(name, *answer)
            except FedkinError as error:
                self.leave_out(name, str(error))
            except (KeyError, TypeError, ValueError, AttributeError):
                self.leave_out(name, f"its answer to '{stage}' cannot be read")
        return found

    # reading ---------------------------------------------------------------------------

    def _signed(self, stage: str, name: str, facts: Facts, body: Any) -> None:
        said = statement(stage, self._session, name, body)
        self.trust.check(name, self._members[name].certificate, facts["signature"], said)

    def _read_shares(self, name: str, facts: Facts, words: Words | None) -> Facts:
        body = {"sealed": facts["sealed"], "seed": facts["seed"]}
        self._signed("shares", name, facts, body)
        if set(body["sealed"]) != set(self._members) - {name}:
            raise FedkinError("it has not sent a share for everybody")
        return body

    def _read_masked(self, senders: list[str]) -> Callable[[str, Facts, Words | None], Words]:
        def read(name: str, facts: Facts, words: Words | None) -> Words:
            self._signed("masked", name, facts, {"from": facts["from"], "hash": facts["hash"]})
            if words is None or len(words) != size_of(self._members[name].layout):
                raise FedkinError("it has sent another number of numbers")
            if facts["hash"] != hash_of(words) or facts["from"] != senders:
                raise FedkinError("its numbers are not those that it has signed")
            return words

        return read

    def _read_check(self, alive: list[str]) -> Callable[[str, Facts, Words | None], str]:
        def read(name: str, facts: Facts, words: Words | None) -> str:
            self._signed("check", name, facts, alive)
            return str(facts["signature"])

        return read

    def _read_open(
        self, alive: list[str], dead: list[str]
    ) -> Callable[[str, Facts, Words | None], dict[str, dict[str, int]]]:
        def read(name: str, facts: Facts, words: Words | None) -> dict[str, dict[str, int]]:
            body = {"seeds": facts["seeds"], "masks": facts["masks"]}
            self._signed("open", name, facts, body)
            if sorted(body["seeds"]) != alive or sorted(body["masks"]) != dead:
                raise FedkinError("it has not sent all shares that were asked for")
            return {kind: {v: _share(s) for v, s in of.items()} for kind, of in body.items()}

        return read

    # undoing masks ---------------------------------------------------------------------

    def _unmasked(
        self,
        masked: Mapping[str, Words],
        shares: Mapping[str, Facts],
        opened: Mapping[str, dict[str, dict[str, int]]],
        alive: list[str],
        dead: list[str],
    ) -> Words:
        points = {name: i for i, name in enumerate(sorted(self._members), 1)}
        needed = self.terms.threshold(len(self._members))

        def secret(kind: str, name: str) -> bytes:
            own = {points[giver]: given[kind][name] for giver, given in opened.items()}
            value = shamir.combine(own, needed)
            if value >= 2 ** (8 * KEY_BYTES):
                raise TooFewError(f"the shares of the secret of '{name}' do not fit each other")
            return value.to_bytes(KEY_BYTES, "big")

        total = np.zeros_like(next(iter(masked.values())))
        for name in alive:
            total += masked[name]
            seed = secret("seeds", name)
            if digest(b"seed", self._session, seed).hex() != shares[name]["seed"]:
                raise TooFewError(f"the shares of the secret of '{name}' do not fit each other")
            total -= self_mask(self._session, name, seed, len(total))
        for name in dead:
            private = X25519PrivateKey.from_private_bytes(secret("masks", name))
            if public_of(private) != self._members[name].mask:
                raise TooFewError(f"the shares of the secret of '{name}' do not fit each other")
            for other in alive:  # the lost site's part is the opposite of what others added
                total += pair_mask(private, name, self._members[other], self._session, len(total))
        return total

    def _need(self, found: Mapping[str, Any], did: str) -> None:
        needed = self.terms.at_least
        if self._session:
            needed = self.terms.threshold(len(self._members))
        if len(found) < needed:
            raise TooFewError(f"only {len(found)} sites have {did}, and a sum needs {needed}")


def _share(text: Any) -> int:
    if not isinstance(text, str) or not text.isdecimal() or len(text) > 80:
        raise FedkinError("a share is not a number")
    return int(text) % shamir.PRIME
