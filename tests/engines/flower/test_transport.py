"""How long a request waits, for whom, and who is refused: the transport without a network."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import nan
from types import SimpleNamespace
from typing import Any

import pytest

from fedkin.engines.flower.answers import IncomingAnswer
from fedkin.engines.flower.engine import SiteRequest
from fedkin.engines.flower.exchange import KnownSite, Sent, WaitPolicy
from fedkin.engines.flower.records import from_records
from fedkin.engines.flower.transport import FlowerTransport
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError
from tests.runs.sites.world import card


class Scripted(FlowerTransport):
    """A transport whose turns are scripted."""

    def __init__(self, sites: str, waiting: WaitPolicy, *turns: Callable[[Scripted], None]) -> None:
        self.said: list[str] = []
        super().__init__(
            None, {"experiment": "e"}, lambda facts: None, waiting, 0, self.said.append
        )  # type: ignore[arg-type]
        self.known = {name: KnownSite(card(name), ord(name)) for name in sites}
        self.turns, self.sent, self.sent_kinds = list(turns), list[int](), list[str]()

    def _send(self, messages: list[Any], marks: list[Any]) -> None:
        self.sent += [mark.node for mark in marks]
        self.sent_kinds += [from_records(incoming[1])[1].get("kind") for incoming in messages]

    def _turn(self) -> None:
        if self.turns:
            self.turns.pop(0)(self)


def answer(*positions: int) -> Callable[[Scripted], None]:
    def turn(transport: Scripted) -> None:
        for i in positions:
            transport._exchange.answers[i] = ({}, {"from": i})

    return turn


def returns(name: str, node: int) -> Callable[[Scripted], None]:
    return lambda transport: transport._meet(node, ({}, card(name)))


def exchange(transport: Scripted, sites: str, everyone: bool = False) -> dict[int, Message | str]:
    return transport.exchange([SiteRequest(name, {}, {}, {}) for name in sites], everyone)


ONE_BY_ONE = (answer(1, 2), answer(0), answer(4), answer(3))


def test_a_request_waits_for_all_in_reach():
    transport = Scripted("abcde", WaitPolicy(), *ONE_BY_ONE)
    assert set(exchange(transport, "abcde")) == set(range(5))
    assert not transport.attendance.summary()


def test_a_share_is_enough_once_the_others_had_as_long_again(monkeypatch: pytest.MonkeyPatch):
    transport = Scripted("abcde", WaitPolicy(0.8, 60), *ONE_BY_ONE)
    assert len(exchange(transport, "abcde")) == 5  # the fifth came within its grace
    monkeypatch.setattr("fedkin.engines.flower.transport.GRACE", 0.0)
    transport.turns = [*ONE_BY_ONE[:3], lambda _: time.sleep(0.05)]
    assert set(exchange(transport, "abcde")) == {0, 1, 2, 4}
    assert transport.attendance.end_round() == (
        {"unanswered": 1, "late": 0, "left_out": 0},
        "no answer in time from d (1)",
    )
    assert transport.attendance.summary() == ["'d' answered 1 of 2 requests in time"]
    assert "d" in transport.known  # it is healthy: only this once it came too late
    transport.turns = list(ONE_BY_ONE)
    assert len(exchange(transport, "abcde", everyone=True)) == 5  # whatever the share


def test_nobody_is_always_asked_last():
    transport, last = Scripted("abcde", WaitPolicy()), set()
    for _ in range(40):
        transport.turns = [answer(0, 1, 2, 3, 4)]
        exchange(transport, "abcde")
        last.add(transport.sent[-1])
    assert last == set(map(ord, "abcde"))


def test_an_answer_that_comes_late_is_counted():
    transport = Scripted("ab", WaitPolicy())
    late = IncomingAnswer("message", "key", [])
    transport._open(Sent(ord("b"), 0, 7, (1,), ("b",)), late, stale=True)
    told_by_flower = IncomingAnswer("message", "key", [], from_link=True)
    transport._open(Sent(ord("a"), 0, 7, (0,), ("a",)), told_by_flower, stale=True)
    assert transport.attendance.end_round()[0] == {"unanswered": 0, "late": 1, "left_out": 0}
    assert transport.attendance.of("b").heard is not None


def test_a_server_that_is_to_stop_does_not_wait_for_a_site_to_come_back():
    transport = Scripted("", WaitPolicy())
    transport.stopping = lambda: True
    with pytest.raises(KeyboardInterrupt):
        exchange(transport, "a")


def test_names_and_reasons_of_sites_are_shown_as_plain_text():
    transport = Scripted("", WaitPolicy())
    transport._meet(5, ({}, card("a\x1b[2Jb\nroot: all is well" + "x" * 900_000)))
    transport._meet(6, ({}, {"name": "b", "error": "\x1b]0;gone\x07\n" + "y" * 900_000}))
    for sentence in transport.said:
        assert sentence.isprintable()
        assert len(sentence) < 500


def test_a_silent_site_is_left_out_until_it_is_heard_of_again():
    transport = Scripted("abc", WaitPolicy(1.0, 0.05), answer(0, 1))
    assert set(exchange(transport, "abc")) == {0, 1}
    assert "site 'c' did not answer within 0.05 seconds" in transport.said[0]
    transport.turns = [answer(0, 1)]
    assert set(exchange(transport, "abc")) == {0, 1}  # at once: nobody waits for c
    assert len(transport.said) == 1
    transport.turns = [answer(0, 1), answer(2)]
    transport.known["c"] = KnownSite(card("c"), 9)
    assert set(exchange(transport, "abc")) == {0, 1, 2}


def test_a_site_that_comes_back_gets_its_letter_again():
    transport = Scripted("ab", WaitPolicy(1.0, 60), answer(0), returns("b", 77), answer(1))
    assert set(exchange(transport, "ab")) == {0, 1}
    assert sorted(transport.sent) == [77, ord("a"), ord("b")]


def test_those_not_in_reach_are_lost_without_waiting():
    transport = Scripted("ab", WaitPolicy(1.0, 60))
    assert exchange(transport, "c") == {}


def test_with_nobody_in_reach_the_run_waits():
    transport = Scripted(
        "", WaitPolicy(1.0, 0.02), *[lambda transport: None] * 3, returns("a", 5), answer(0)
    )
    assert set(exchange(transport, "a")) == {0}
    assert transport.sent == [5]


@pytest.mark.parametrize("all_registered", [True, False])
def test_a_registered_site_cannot_speak_in_anothers_name(all_registered: bool):
    transport = Scripted("", WaitPolicy())
    transport.registered, transport._names = all_registered, {5: "north", 6: "south"}
    transport._meet(5, ({}, card("south")))
    assert not transport.known
    assert "cannot take part: its key is that of 'north', not of 'south'" in transport.said[0]
    transport._meet(6, ({}, card("south")))
    assert list(transport.known) == ["south"]
    assert transport.said[1:] == ["site 'south' is here"]


def test_a_name_in_use_is_refused_as_long_as_its_site_is_there():
    transport = Scripted("a", WaitPolicy())
    transport._names = {ord("a"): "", 7: ""}
    transport._meet(7, ({}, card("a", identity="another")))
    assert transport.known["a"].node == ord("a")
    assert "another site that is connected is called 'a'" in transport.said[0]
    assert transport.sent_kinds == ["refused"]
    transport._names = {7: ""}
    transport._meet(7, ({}, card("a", identity="another")))
    assert transport.known["a"].node == 7
    assert "another installation" in transport.said[1]


def test_a_site_that_leaves_before_the_run_begins_is_not_counted():
    def looks(*nodes: int) -> Callable[[Scripted], None]:
        return lambda transport: transport._names.update(dict.fromkeys(nodes, ""))

    transport = Scripted("ab", WaitPolicy(), looks(ord("a")), returns("b", 8))
    transport._names = {8: ""}
    assert transport.gather(lambda cards: {c.node for c in cards.values()} == {ord("a"), 8}, 5)
    assert transport.said == [
        "site 'b' cannot be reached until it connects again: it has left",
        "site 'b' is here",
    ]


def test_a_request_to_nobody_is_over_at_once():
    assert exchange(Scripted("a", WaitPolicy()), "") == {}


@pytest.mark.parametrize("waiting", [{"wait": 0}, {"wait": 1.1}, {"timeout": 0}, {"timeout": nan}])
def test_impossible_terms_are_refused(waiting: dict[str, float]):
    with pytest.raises(FedkinError, match="must be above 0"):
        WaitPolicy(**waiting)


def test_a_machine_speaks_for_the_names_that_begin_with_its_own():
    transport = Scripted("", WaitPolicy())
    transport.registered, transport._names = True, {5: "north"}
    transport._meet(5, ({}, {"sites": [card("north.a"), card("south.b"), card("north.c")]}))
    assert list(transport.known) == ["north.a", "north.c"]
    assert "its key is that of 'north', not of 'south.b'" in transport.said[1]
    transport._meet(5, ({}, {"sites": "all"}))
    assert "it tells of no sites" in transport.said[-1]


def test_requests_to_a_machines_sites_travel_together_in_messages_of_limited_size():
    transport = Scripted("x", WaitPolicy(), answer(*range(8)))
    transport.bundle = 3
    transport._meet(5, ({}, {"sites": [card(f"m.{i}") for i in range(7)]}))
    facts = {"kind": "work", "experiment": "e"}
    asked = [SiteRequest(name, {}, {}, facts) for name in transport.known]
    transport.exchange(asked)
    assert sorted(transport.sent) == [5, 5, 5, ord("x")]
    assert sorted(transport.sent_kinds) == ["bundle", "bundle", "bundle", "work"]


def test_sites_of_a_machine_that_were_silent_are_greeted_again():
    class Grid:
        node = 5

        def get_nodes(self) -> list[Any]:
            return [SimpleNamespace(node_id=5, name="")]

    transport = Scripted("", WaitPolicy(1.0, 0.02), answer(0))
    transport._meet(5, ({}, {"sites": [card("m.a"), card("m.b")]}))
    facts = {"kind": "work", "experiment": "e"}
    transport.exchange([SiteRequest(name, {}, {}, facts) for name in ("m.a", "m.b")])
    assert list(transport.known) == ["m.a"]
    transport.grid, transport.sent_kinds = Grid(), []  # type: ignore[assignment]
    transport._greet_new()
    assert transport.sent_kinds == ["hello"]
    transport._meet(5, ({}, {"sites": [card("m.a"), card("m.b")]}))
    transport._looked, transport.sent_kinds = 0.0, []
    transport._greet_new()
    assert transport.sent_kinds == []
