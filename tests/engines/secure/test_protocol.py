"""Secure sums: what the server gets, whoever is lost when, and what sites refuse."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.engines.secure.collector import TooFewError
from fedkin.engines.secure.crypto import Identity, Trust, from_text, to_text
from fedkin.engines.secure.party import STAGES
from fedkin.engines.secure.terms import Facts, Terms
from fedkin.errors import FedkinError
from tests.engines.secure.sums import NAMES, Room, make_identities, terms, trust_of

LATER = STAGES[1:]
Made = tuple[dict[str, Identity], Trust]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certs")


@pytest.fixture(scope="module")
def made(folder: Path) -> Made:
    identities = make_identities(folder)
    return identities, trust_of(folder)


def refusals(room: Room) -> str:
    return "\n".join(f"{name}: {why}" for name, why in room.said)


def test_the_sum_is_exact_and_no_answer_shows_its_numbers(made: Made):
    room = Room(*made)
    found = room.total()
    assert found.sites == list(NAMES)
    np.testing.assert_array_equal(found.words, room.plain(list(NAMES)))
    for name, party in room.parties.items():
        _, sent = party._answers["masked"][1]
        assert sent is not None
        assert not (sent == room.numbers[name]).any()
        # the masks are as random as random bits: half of them ones (4 deviations)
        bits = np.unpackbits((sent - room.numbers[name]).view(np.uint8))
        assert abs(bits.mean() - 0.5) < 4 * 0.5 / len(bits) ** 0.5


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("lost", [("ada",), ("eve",), ("bob", "cleo")])
def test_sites_that_are_lost_at_any_stage_do_not_spoil_the_sum(
    made: Made, stage: str, lost: tuple[str, ...]
):
    """5 sites, 3 are enough: any one or two may be lost. Who sent numbers is in the sum."""
    room = Room(*made, lost=dict.fromkeys(lost, stage))
    found = room.total()
    there = stage in ("check", "open")  # its numbers had been sent
    assert found.sites == [n for n in NAMES if n not in lost or there]
    np.testing.assert_array_equal(found.words, room.plain(found.sites))


@pytest.mark.parametrize(("first", "second"), list(combinations(LATER, 2)))
def test_sites_that_are_lost_at_different_stages(made: Made, first: str, second: str):
    room = Room(*made, lost={"bob": first, "eve": second})
    found = room.total()
    gone = {n for n, stage in (("bob", first), ("eve", second)) if stage in ("shares", "masked")}
    assert found.sites == [n for n in NAMES if n not in gone]
    np.testing.assert_array_equal(found.words, room.plain(found.sites))


@pytest.mark.parametrize("stage", STAGES)
def test_with_too_few_sites_there_is_no_sum(made: Made, stage: str):
    room = Room(*made, lost=dict.fromkeys(NAMES[:3], stage))
    with pytest.raises(TooFewError, match="only 2 sites have"):
        room.total()


@pytest.mark.parametrize("stage", ["shares", "open"])
def test_more_sites_than_half_may_be_demanded(made: Made, stage: str):
    room = Room(*made, terms(at_least=5), lost={"dan": stage})
    with pytest.raises(TooFewError, match=r"only 4 sites have .* needs 5"):
        room.total()


def test_a_site_that_was_lost_comes_back_in_the_next_sum(made: Made):
    Room(*made, lost={"bob": "masked"}).total()
    room = Room(*made, terms(round=4))
    found = room.total()
    assert found.sites == list(NAMES)
    np.testing.assert_array_equal(found.words, room.plain(list(NAMES)))


def test_a_site_that_lost_its_secrets_is_a_lost_site(made: Made):
    """It was restarted between two stages: its new keys are not those of the sum."""
    room = Room(*made)

    def restart(stage: str, name: str, facts: Facts) -> Facts:
        if stage == "masked" and name == "cleo":
            room.parties["cleo"] = room.party("cleo")
        return facts

    room.bend = restart
    found = room.total()
    assert found.sites == [n for n in NAMES if n != "cleo"]
    np.testing.assert_array_equal(found.words, room.plain(found.sites))
    assert "cleo: 'masked' is not what comes next" in refusals(room)


def test_a_question_that_arrives_twice_gets_the_same_answer(made: Made):
    room = Room(*made)
    room.total()
    for stage, name, question in room.asked:
        facts, _ = room.parties[name].answer(stage, question)
        assert facts in [f for s, n, f in room.heard if (s, n) == (stage, name)] or stage == "keys"


# a dishonest server -----------------------------------------------------------------------


def test_nobody_gives_both_shares_of_a_site(made: Made):
    room = Room(*made)

    def both(stage: str, name: str, facts: Facts) -> Facts:
        return {**facts, "dead": ["ada"]} if stage == "open" else facts

    room.bend = both
    with pytest.raises(TooFewError):
        room.total()
    assert len(room.said) == 5
    assert all("both shares of 'ada' are asked for" in why for _, why in room.said)
    assert not [stage for stage, *_ in room.heard if stage == "open"]


def test_nobody_gives_the_second_share_in_a_second_question(made: Made):
    room = Room(*made)
    room.total()
    for name in NAMES:
        question = next(q for s, n, q in room.asked if (s, n) == ("open", name))
        alive = [n for n in question["alive"] if n != "ada"]
        with pytest.raises(FedkinError, match="was asked before, and not the same"):
            room.parties[name].answer("open", {**question, "alive": alive, "dead": ["ada"]})


def test_a_server_that_tells_sites_different_lists_gets_no_shares(made: Made):
    """Half of the sites are told that ada was lost: her masks' secret and her own would meet."""
    room = Room(*made)

    def two_stories(stage: str, name: str, facts: Facts) -> Facts:
        if stage == "check" and name in ("dan", "eve"):
            return {"alive": [n for n in facts["alive"] if n != "ada"]}
        return facts

    room.bend = two_stories
    found = room.total()  # three have signed the true list, and three are enough
    np.testing.assert_array_equal(found.words, room.plain(list(NAMES)))
    lists = [q for s, n, q in room.asked if s == "open" and n in ("dan", "eve")]
    signed = {n: f["signature"] for s, n, f in room.heard if s == "check"}
    other = {
        "alive": [n for n in NAMES if n != "ada"], "dead": ["ada"],
        "signed": {n: signed[n] for n in ("dan", "eve")},
    }  # fmt: skip
    assert not lists
    for name in ("dan", "eve"):
        with pytest.raises(FedkinError, match="only 2 of 5 sites have signed the list"):
            room.parties[name].answer("open", other)
        more = {n: signature for n, signature in signed.items() if n != "ada"}
        with pytest.raises(FedkinError, match="not signed by 'bob'"):
            room.parties[name].answer("open", {**other, "signed": more})


@pytest.mark.parametrize(
    ("stage", "change", "reason"),
    [
        ("shares", {"keys": {}}, "0 sites have sent keys"),
        ("shares", {}, "0 sites have sent keys"),
        ("masked", {"shares": {}}, "only 1 of 5 sites have sent shares"),
        ("masked", {"shares": {"zoe": "aaaa"}}, "cannot be right"),
        ("masked", {"shares": ["bob"]}, "cannot be right"),
        ("check", {"alive": ["ada"]}, "only 1 of 5 sites have sent numbers"),
        ("check", {"alive": ["ada", "ada", "bob"]}, "cannot be right"),
        ("check", {"alive": ["bob", "cleo", "dan"]}, "cannot be right"),
        ("check", {"alive": ["ada", "bob", "zoe"]}, "sent no shares"),
        ("check", {}, "sent no shares"),
        ("open", {"signed": {}}, "only 0 of 5 sites have signed"),
        ("open", {"alive": ["ada", "bob"]}, "not the one that was signed"),
        ("open", {"dead": ["bob"], "alive": ["ada", "cleo", "dan", "eve"]}, "not the one that"),
        ("open", {"signed": {"zoe": "a", "ada": "a", "bob": "a"}}, "somebody has signed"),
        ("open", {"signed": "all"}, "cannot be read"),
    ],
)
def test_lists_that_are_not_right_are_refused(made: Made, stage: str, change: Facts, reason: str):
    room = Room(*made)

    def bend(now: str, name: str, facts: Facts) -> Facts:
        if now != stage or name != "ada":
            return facts
        return change if stage in ("shares", "masked", "check") else {**facts, **change}

    room.bend = bend
    room.total()  # without ada, or without her help
    assert reason in refusals(room)


def test_at_least_so_many_is_the_sites_own_condition(made: Made):
    """The server lists two sites only, with three agreed."""
    room = Room(*made)

    def two(stage: str, name: str, facts: Facts) -> Facts:
        if stage == "shares":
            return {"keys": {n: facts["keys"][n] for n in ("ada", "bob")}}
        return facts

    room.bend = two
    with pytest.raises(TooFewError):
        room.total()
    assert "2 sites have sent keys, and this sum is of 3 to 5" in refusals(room)


def test_sites_notice_that_they_are_not_asked_the_same(made: Made):
    """Another model for one site would show what that one makes of it."""
    room = Room(*made)
    room.parties["ada"] = room.party("ada", terms=terms(request="cd" * 32))
    found = room.total()
    assert found.sites == list(NAMES[1:])
    assert "ada: a message was not signed by 'ada'" in refusals(room)
    # nor does ada go on if a dishonest server passes the others' keys on to her
    room = Room(*made)
    ada = room.party("ada", terms=terms(request="cd" * 32))
    keys = {n: a[0] for n, a in room.ask("keys", {key: {} for key in NAMES}).items()}
    own, _ = ada.answer("keys", {})
    with pytest.raises(FedkinError, match="not signed by 'bob'"):
        ada.answer("shares", {"keys": {**keys, "ada": own}})


# replays and forgeries --------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"round": 2}, {"call": 1}, {"start": 0}, {"experiment": "run-2"}, {"at_least": 2}],
)  # fmt: skip
def test_keys_of_another_sum_are_refused(made: Made, change: Facts):
    before = Room(*made, terms(**change))
    old = before.ask("keys", {key: {} for key in NAMES})
    room = Room(*made)

    def replay(stage: str, name: str, facts: Facts) -> Facts:
        if stage == "shares" and name != "bob":
            return {"keys": {**facts["keys"], "bob": old["bob"][0]}}
        return facts

    room.bend = replay
    with pytest.raises(TooFewError):
        room.total()
    assert len([why for _, why in room.said if "not signed by 'bob'" in why]) == 4


def test_shares_and_signatures_of_another_sum_are_refused(made: Made):
    before = Room(*made)
    before.total()
    old = {(stage, name): facts for stage, name, facts in before.heard}
    room = Room(*made)  # the same terms again, with the fresh keys of each site

    def replay(stage: str, name: str, facts: Facts) -> Facts:
        if stage == "masked" and name == "ada":
            sealed = {n: old["shares", n]["sealed"]["ada"] for n in NAMES if n != "ada"}
            return {"shares": sealed}
        if stage == "open" and name == "bob":
            signed = {n: old["check", n]["signature"] for n in facts["signed"]}
            return {**facts, "signed": signed}
        return facts

    room.bend = replay
    found = room.total()
    assert found.sites == list(NAMES[1:])
    assert "ada: a sealed share was changed, or was meant for another sum" in refusals(room)
    assert "bob: a message was not signed by" in refusals(room)


@pytest.mark.parametrize("stage", STAGES)
def test_answers_that_another_has_signed_are_left_out(made: Made, stage: str):
    """Whoever speaks in bob's name to the server has not his key."""
    room = Room(*made)

    def forge(now: str, name: str, facts: Facts) -> Facts:
        if now != stage or name != "bob":
            return facts
        return {**facts, "signature": made[0]["eve"].sign(b"anything")}

    room.bend_answer = forge
    found = room.total()
    assert ("bob" in found.sites) == (stage in ("check", "open"))
    np.testing.assert_array_equal(found.words, room.plain(found.sites))
    assert "bob: a message was not signed by 'bob'" in refusals(room)


@pytest.mark.parametrize(
    ("stage", "key", "value"),
    [("keys", "box", to_text(bytes(32))), ("keys", "mask", "AAAA"), ("keys", "layout", []),
     ("keys", "certificate", "none"), ("shares", "sealed", {}), ("shares", "seed", "00"),
     ("masked", "hash", "00"), ("masked", "from", []), ("open", "seeds", {}),
     ("open", "masks", {"ada": "1"})],
)  # fmt: skip
def test_answers_that_were_changed_on_their_way_are_left_out(
    made: Made, stage: str, key: str, value: Any
):
    room = Room(*made)
    room.bend_answer = lambda now, name, facts: (
        {**facts, key: value} if (now, name) == (stage, "bob") else facts
    )
    found = room.total()
    np.testing.assert_array_equal(found.words, room.plain(found.sites))
    assert "bob: " in refusals(room)


def test_a_share_that_was_changed_is_noticed_by_who_opens_it(made: Made):
    room = Room(*made)

    def spoil(stage: str, name: str, facts: Facts) -> Facts:
        if stage == "masked" and name == "ada":
            sealed = bytearray(from_text(facts["shares"]["bob"]))
            sealed[20] ^= 1
            return {"shares": {**facts["shares"], "bob": to_text(bytes(sealed))}}
        return facts

    room.bend = spoil
    assert room.total().sites == list(NAMES[1:])
    assert "ada: a sealed share was changed" in refusals(room)


def test_a_site_that_opens_wrong_shares_is_noticed(made: Made):
    """It signs them itself, so only the secret that comes out can tell."""
    room = Room(*made, lost={"eve": "masked"})
    line = room.parties["ada"]._open

    def wrong(facts: Facts) -> tuple[Facts, None]:
        party = room.parties["ada"]
        party._kept = {name: (a + 1, b + 1) for name, (a, b) in party._kept.items()}
        return line(facts)  # type: ignore[return-value]

    room.parties["ada"]._open = wrong  # type: ignore[method-assign, assignment]
    with pytest.raises(TooFewError, match="do not fit each other"):
        room.total()


@pytest.mark.parametrize("who", ["strange authority", "another's certificate", "the server's own"])
def test_only_sites_of_the_authority_can_be_in_a_sum(
    made: Made, folder: Path, tmp_path: Path, who: str
):
    identities, trust = made
    if who == "strange authority":
        false = make_identities(tmp_path, ("mal",))["mal"]
    elif who == "another's certificate":
        false = Identity("mal", identities["eve"].key, identities["eve"].certificate)
    else:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        from fedkin.engines.flower.certificates import make_certificates

        shutil.copytree(folder, tmp_path / "all")
        make_certificates(tmp_path / "all", ["mal"], [])
        server = tmp_path / "all" / "server"
        key = load_pem_private_key((server / "server.key").read_bytes(), None)
        false = Identity("mal", key, (server / "server.pem").read_bytes())  # type: ignore[arg-type]
    room = Room({**identities, "mal": false}, trust, terms(most=6))
    found = room.total()
    assert found.sites == list(NAMES)
    assert "mal: the certificate of 'mal' is not" in refusals(room)
    # and if the server itself puts it on the list, sites go no further
    keys = {n: f for s, n, f in room.heard if s == "keys"}
    fresh = room.party("ada")
    own, _ = fresh.answer("keys", {})
    with pytest.raises(FedkinError, match="the certificate of 'mal' is not"):
        fresh.answer("shares", {"keys": {**keys, "ada": own}})


def test_one_key_under_two_names_is_refused(made: Made):
    """A server could fill a sum up with one site's keys."""
    room = Room(*made)
    keys = {n: a[0] for n, a in room.ask("keys", {key: {} for key in NAMES}).items()}
    twin = room.party("eve")
    twin._box = room.parties["dan"]._box
    keys["eve"], _ = twin.answer("keys", {})
    with pytest.raises(FedkinError, match="the same key"):
        room.parties["ada"].answer("shares", {"keys": keys})


def test_numbers_leave_only_if_the_site_has_noted_it(made: Made):
    room = Room(*made)

    def refuse() -> None:
        raise FedkinError("it was added up before")

    room.parties["dan"] = room.party("dan", spend=refuse)
    found = room.total()
    assert "dan" not in found.sites
    assert "dan: it was added up before" in refusals(room)
    np.testing.assert_array_equal(found.words, room.plain(found.sites))


@pytest.mark.parametrize(
    "change",
    [{"at_least": 1}, {"at_least": 6}, {"bits": 60}, {"bits": 0}, {"most": 10**6}, {"round": -1},
     {"round": 1.5}, {"experiment": 3}, {"request": "x" * 500}],
)  # fmt: skip
def test_terms_that_make_no_sense_are_refused(change: Facts):
    with pytest.raises(FedkinError, match="secure sum"):
        terms(**change)
    with pytest.raises(FedkinError, match="cannot be read"):
        Terms.read({**terms().facts(), "more": 1})


def test_the_threshold_is_more_than_half_and_what_was_agreed():
    assert [terms(at_least=2).threshold(n) for n in (2, 3, 4, 5, 30)] == [2, 2, 3, 3, 16]
    assert [terms().threshold(n) for n in (3, 4, 5, 30)] == [3, 3, 3, 16]
