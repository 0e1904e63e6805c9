"""A site's part in one secure sum, from its keys to the shares that undo masks.

Five questions come from the server, in this order; each is answered once, the same question
gets the same answer again, and any other is refused:

  keys    two fresh public keys, signed
  shares  who has sent keys? Shares of the site's two secrets, sealed for each of the others
  masked  who has sent shares? The site's numbers under its own mask and one per pair of sites
  check   who has sent numbers? The site signs that list
  open    at least a threshold has signed it: for each site on the list the share of its own
          mask's secret, for each that is not the share of its pairs' secret, never both
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedkin.engines.secure import shamir
from fedkin.engines.secure.crypto import (
    KEY_BYTES,
    Identity,
    Trust,
    agree,
    from_text,
    public_of,
    seal,
    stream,
    to_text,
    unseal,
)
from fedkin.engines.secure.fixed import Layout, Words, read_layout
from fedkin.engines.secure.terms import Facts, Terms, canonical, digest, statement
from fedkin.errors import FedkinError

STAGES = ("keys", "shares", "masked", "check", "open")
SHARE_BYTES = 33


@dataclass(frozen=True)
class Member:
    """A site that has sent keys: its certificate and its public keys for boxes and for masks."""

    name: str
    certificate: bytes
    box: bytes
    mask: bytes
    layout: Layout


def read_member(name: str, facts: Mapping[str, Any], terms: Terms, trust: Trust) -> Member:
    """A site's keys, if the site itself has signed them for this sum."""
    try:
        certificate = str(facts["certificate"]).encode()
        body = {key: facts[key] for key in ("box", "mask", "layout")}
        signature = facts["signature"]
    except (KeyError, TypeError):
        raise FedkinError(f"the keys of '{name}' cannot be read") from None
    trust.check(name, certificate, signature, statement("keys", terms.first(), name, body))
    box, mask = from_text(body["box"], KEY_BYTES), from_text(body["mask"], KEY_BYTES)
    return Member(name, certificate, box, mask, read_layout(body["layout"]))


def read_members(listed: Any, terms: Terms, trust: Trust) -> dict[str, Member]:
    """All who have sent keys; no key may be there twice."""
    if not isinstance(listed, dict) or not terms.at_least <= len(listed) <= terms.most:
        count = len(listed) if isinstance(listed, dict) else 0
        raise FedkinError(
            f"{count} sites have sent keys, and this sum is of {terms.at_least} to {terms.most}"
        )
    members = {name: read_member(name, listed[name], terms, trust) for name in sorted(listed)}
    keys = [key for member in members.values() for key in (member.box, member.mask)]
    owners = {member.certificate for member in members.values()}
    if len(set(keys)) < len(keys) or len(owners) < len(members):
        raise FedkinError("two sites of this sum have the same key")
    if len({canonical(member.layout) for member in members.values()}) > 1:
        raise FedkinError("the sites of this sum have answers of different shapes")
    return members


def session_of(terms: Terms, members: Mapping[str, Member]) -> bytes:
    """One sum among these sites with these keys: what all later messages are bound to."""
    listed = [[m.name, m.box.hex(), m.mask.hex()] for _, m in sorted(members.items())]
    return digest(terms.first(), canonical(listed))


def pair(session: bytes, one: str, other: str) -> bytes:
    """The purpose of the mask that two sites share."""
    return canonical(["mask", session.hex(), *sorted((one, other))])


def box(session: bytes, sender: str, receiver: str) -> bytes:
    """The purpose of a box from one site to another."""
    return canonical(["box", session.hex(), sender, receiver])


def self_mask(session: bytes, name: str, seed: bytes, count: int) -> Words:
    key = digest(b"self", session, name.encode(), seed)
    return stream(key, count)


def pair_mask(
    private: X25519PrivateKey, name: str, other: Member, session: bytes, count: int
) -> Words:
    """What `name` adds for its pair with another site; that one adds the opposite."""
    mask = stream(agree(private, other.mask, pair(session, name, other.name)), count)
    return mask if name < other.name else np.negative(mask)


class Party:
    """One site in one sum. `spend` is called before masked numbers leave, and may refuse."""

    def __init__(
        self,
        identity: Identity,
        trust: Trust,
        terms: Terms,
        layout: Layout,
        numbers: Words,
        spend: Callable[[], None] = lambda: None,
    ) -> None:
        self.identity, self.trust, self.terms = identity, trust, terms
        self.layout, self.numbers, self.spend = layout, numbers, spend
        self._box, self._mask = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = os.urandom(KEY_BYTES)
        self._answers: dict[str, tuple[bytes, tuple[Facts, Words | None]]] = {}
        self._members: dict[str, Member] = {}
        self._session = b""
        self._kept: dict[str, tuple[int, int]] = {}  # shares of others' seeds and mask keys
        self._alive: list[str] = []

    def answer(self, stage: str, facts: Mapping[str, Any]) -> tuple[Facts, Words | None]:
        """The answer to a question, which is asked in its turn and once."""
        asked = digest(canonical(facts))
        if stage in self._answers:
            before, answer = self._answers[stage]
            if before != asked:
                raise FedkinError(f"'{stage}' was asked before, and not the same")
            return answer
        place = STAGES.index(stage) if stage in STAGES else -1
        if place != len(self._answers):
            raise FedkinError(f"'{stage[:20]}' is not what comes next in this sum")
        found: tuple[Facts, Words | None] = getattr(self, f"_{stage}")(facts)
        self._answers[stage] = asked, found
        return found

    # the five stages -------------------------------------------------------------------

    def _keys(self, facts: Mapping[str, Any]) -> tuple[Facts, None]:
        body = {
            "box": to_text(public_of(self._box)),
            "mask": to_text(public_of(self._mask)),
            "layout": self.layout,
        }
        signature = self._sign("keys", self.terms.first(), body)
        certificate = self.identity.certificate.decode()
        return {**body, "certificate": certificate, "signature": signature}, None

    def _shares(self, facts: Mapping[str, Any]) -> tuple[Facts, None]:
        me = self.identity.name
        members = read_members(facts.get("keys"), self.terms, self.trust)
        own = members.get(me)
        mine = (public_of(self._box), public_of(self._mask))
        if own is None or (own.box, own.mask) != mine:
            raise FedkinError("this site's own keys are not among those of this sum")
        if canonical(own.layout) != canonical(self.layout):
            raise FedkinError("the sites of this sum have answers of different shapes")
        self._members, self._session = members, session_of(self.terms, members)
        threshold = self.terms.threshold(len(members))
        secrets = (self._seed, self._mask.private_bytes_raw())
        lines = [shamir.polynomial(int.from_bytes(s, "big"), threshold) for s in secrets]
        sealed = {}
        for point, (name, other) in enumerate(sorted(members.items()), 1):
            both = (shamir.share(lines[0], point), shamir.share(lines[1], point))
            if name == me:
                self._kept[me] = both
                continue
            content = b"".join(value.to_bytes(SHARE_BYTES, "big") for value in both)
            about = box(self._session, me, name)
            sealed[name] = to_text(seal(agree(self._box, other.box, about), content, about))
        # so that whoever puts the seed together can tell whether it is the right one
        body = {"sealed": sealed, "seed": digest(b"seed", self._session, self._seed).hex()}
        return {**body, "signature": self._sign("shares", self._session, body)}, None

    def _masked(self, facts: Mapping[str, Any]) -> tuple[Facts, Words]:
        me, given = self.identity.name, facts.get("shares")
        if not isinstance(given, dict) or me in given or not set(given) <= set(self._members):
            raise FedkinError("the list of those who sent shares cannot be right")
        self._need([me, *given], "sent shares")
        kept = {me: self._kept[me]}
        for name in sorted(given):
            about = box(self._session, name, me)
            key = agree(self._box, self._members[name].box, about)
            content = unseal(key, from_text(given[name]), about)
            if len(content) != 2 * SHARE_BYTES:
                raise FedkinError(f"the shares of '{name}' have another length")
            first, second = content[:SHARE_BYTES], content[SHARE_BYTES:]
            kept[name] = int.from_bytes(first, "big"), int.from_bytes(second, "big")
        count, session = len(self.numbers), self._session
        total = self.numbers + self_mask(session, me, self._seed, count)
        for name in sorted(given):
            total += pair_mask(self._mask, me, self._members[name], session, count)
        self.spend()
        self._kept = kept
        body = {"from": sorted([me, *given]), "hash": hash_of(total)}
        return {**body, "signature": self._sign("masked", session, body)}, total

    def _check(self, facts: Mapping[str, Any]) -> tuple[Facts, None]:
        alive = facts.get("alive")
        if not isinstance(alive, list) or not set(alive) <= set(self._kept):
            raise FedkinError("the list of those who sent numbers has sites that sent no shares")
        if len(set(alive)) < len(alive) or self.identity.name not in alive:
            raise FedkinError("the list of those who sent numbers cannot be right")
        self._need(alive, "sent numbers")
        self._alive = sorted(alive)
        return {"signature": self._sign("check", self._session, self._alive)}, None

    def _open(self, facts: Mapping[str, Any]) -> tuple[Facts, None]:
        alive, dead, signed = facts.get("alive"), facts.get("dead"), facts.get("signed")
        if not (isinstance(alive, list) and isinstance(dead, list) and isinstance(signed, dict)):
            raise FedkinError("the question for shares cannot be read")
        both = sorted(set(map(str, alive)) & set(map(str, dead)))
        if both:
            raise FedkinError(
                f"both shares of '{both[0]}' are asked for, which together would show its numbers"
            )
        if sorted(alive) != self._alive:
            raise FedkinError("the list of those who sent numbers is not the one that was signed")
        if sorted(dead) != sorted(set(self._kept) - set(self._alive)):
            raise FedkinError("the list of those who were lost does not fit the one of the others")
        if not set(signed) <= set(self._alive):
            raise FedkinError("somebody has signed who sent no numbers")
        self._need(signed, "signed the list")
        for name in sorted(signed):
            said = statement("check", self._session, name, self._alive)
            self.trust.check(name, self._members[name].certificate, signed[name], said)
        body = {
            "seeds": {name: str(self._kept[name][0]) for name in self._alive},
            "masks": {name: str(self._kept[name][1]) for name in sorted(dead)},
        }
        return {**body, "signature": self._sign("open", self._session, body)}, None

    # -----------------------------------------------------------------------------------

    def _need(self, names: Iterable[str], did: str) -> None:
        count, needed = len(set(names)), self.terms.threshold(len(self._members))
        if count < needed:
            raise FedkinError(
                f"only {count} of {len(self._members)} sites have {did}, and a sum needs {needed}"
            )

    def _sign(self, stage: str, about: bytes, body: Any) -> str:
        return self.identity.sign(statement(stage, about, self.identity.name, body))


def hash_of(words: Words) -> str:
    return hashlib.sha256(np.ascontiguousarray(words).tobytes()).hexdigest()
