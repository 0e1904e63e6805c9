"""How long a request waits, for whom, and who is refused: the server's post without a network."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import pytest

from fedkin.engines.flower.engine import Letter
from fedkin.engines.flower.post import Card, FlowerPost, Terms
from fedkin.engines.flower.records import from_records
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError
from tests.runs.sites.world import card


class Scripted(FlowerPost):
    """A post whose every turn is told beforehand."""

    def __init__(self, sites: str, terms: Terms, *turns: Callable[[Scripted], None]) -> None:
        self.said: list[str] = []
        super().__init__(None, {"experiment": "e"}, lambda facts: None, terms, 0, self.said.append)  # type: ignore[arg-type]
        self.cards = {name: Card(card(name), ord(name)) for name in sites}
        self.turns, self.sent, self.sent_kinds = list(turns), list[int](), list[str]()

    def _send(self, parcels: list[Any], marks: list[Any]) -> None:
        self.sent += [mark.node for mark in marks]
        self.sent_kinds += [from_records(parcel[1])[1].get("kind") for parcel in parcels]

    def _turn(self) -> None:
        if self.turns:
            self.turns.pop(0)(self)


def answer(*positions: int) -> Callable[[Scripted], None]:
    def turn(post: Scripted) -> None:
        for i in positions:
            post._exchange.answers[i] = ({}, {"from": i})

    return turn


def returns(name: str, node: int) -> Callable[[Scripted], None]:
    return lambda post: post._meet(node, ({}, card(name)))


def exchange(post: Scripted, sites: str) -> dict[int, Message | str]:
    return post.exchange([Letter(name, {}, {}, {}) for name in sites])


def test_a_request_waits_for_the_agreed_share():
    post = Scripted("abcde", Terms(0.8, 60), answer(1, 2), answer(0), answer(4), answer(3))
    assert set(exchange(post, "abcde")) == {0, 1, 2, 4}
    assert len(post.turns) == 1


def test_a_silent_site_is_left_out_until_it_is_heard_of_again():
    post = Scripted("abc", Terms(1.0, 0.05), answer(0, 1))
    assert set(exchange(post, "abc")) == {0, 1}
    assert "site 'c' did not answer within 0.05 seconds" in post.said[0]
    post.turns = [answer(0, 1)]
    assert set(exchange(post, "abc")) == {0, 1}  # at once: nobody waits for c
    assert len(post.said) == 1
    post.turns = [answer(0, 1), answer(2)]
    post.cards["c"] = Card(card("c"), 9)
    assert set(exchange(post, "abc")) == {0, 1, 2}


def test_a_site_that_comes_back_gets_its_letter_again():
    post = Scripted("ab", Terms(1.0, 60), answer(0), returns("b", 77), answer(1))
    assert set(exchange(post, "ab")) == {0, 1}
    assert post.sent == [ord("a"), ord("b"), 77]


def test_those_not_in_reach_are_lost_without_waiting():
    post = Scripted("ab", Terms(1.0, 60))
    assert exchange(post, "c") == {}


def test_with_nobody_in_reach_the_run_waits():
    post = Scripted("", Terms(1.0, 0.02), *[lambda post: None] * 3, returns("a", 5), answer(0))
    assert set(exchange(post, "a")) == {0}
    assert post.sent == [5]


@pytest.mark.parametrize("all_registered", [True, False])
def test_a_registered_site_cannot_speak_in_anothers_name(all_registered: bool):
    post = Scripted("", Terms())
    post.registered, post._names = all_registered, {5: "north", 6: "south"}
    post._meet(5, ({}, card("south")))
    assert not post.cards
    assert "cannot take part: its key is that of 'north', not of 'south'" in post.said[0]
    post._meet(6, ({}, card("south")))
    assert list(post.cards) == ["south"]
    assert post.said[1:] == ["site 'south' is here"]


def test_a_name_in_use_is_refused_as_long_as_its_site_is_there():
    post = Scripted("a", Terms())
    post._names = {ord("a"): "", 7: ""}
    post._meet(7, ({}, card("a", identity="another")))
    assert post.cards["a"].node == ord("a")
    assert "another site that is connected is called 'a'" in post.said[0]
    assert post.sent_kinds == ["refused"]
    post._names = {7: ""}
    post._meet(7, ({}, card("a", identity="another")))
    assert post.cards["a"].node == 7
    assert "another installation" in post.said[1]


def test_a_site_that_leaves_before_the_run_begins_is_not_counted():
    def looks(*nodes: int) -> Callable[[Scripted], None]:
        return lambda post: post._names.update(dict.fromkeys(nodes, ""))

    post = Scripted("ab", Terms(), looks(ord("a")), returns("b", 8))
    post._names = {8: ""}
    assert post.gather(lambda cards: {c.node for c in cards.values()} == {ord("a"), 8}, 5)
    assert post.said == [
        "site 'b' is out of reach until it is heard of again: it has left",
        "site 'b' is here",
    ]


def test_a_request_to_nobody_is_over_at_once():
    assert exchange(Scripted("a", Terms()), "") == {}


@pytest.mark.parametrize("terms", [{"wait": 0}, {"wait": 1.1}, {"timeout": 0}, {"timeout": nan}])
def test_impossible_terms_are_refused(terms: dict[str, float]):
    with pytest.raises(FedkinError, match="must be above 0"):
        Terms(**terms)
