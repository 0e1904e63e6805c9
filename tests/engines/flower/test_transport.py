"""How long a request waits, for whom, and who is refused: the transport without a network."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import pytest

from fedkin.engines.flower.engine import SiteRequest
from fedkin.engines.flower.records import from_records
from fedkin.engines.flower.transport import FlowerTransport, KnownSite, WaitPolicy
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


def exchange(transport: Scripted, sites: str) -> dict[int, Message | str]:
    return transport.exchange([SiteRequest(name, {}, {}, {}) for name in sites])


def test_a_request_waits_for_the_agreed_share():
    transport = Scripted(
        "abcde", WaitPolicy(0.8, 60), answer(1, 2), answer(0), answer(4), answer(3)
    )
    assert set(exchange(transport, "abcde")) == {0, 1, 2, 4}
    assert len(transport.turns) == 1


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
    assert transport.sent == [ord("a"), ord("b"), 77]


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
