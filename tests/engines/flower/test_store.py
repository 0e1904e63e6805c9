"""A site's memory advances once per request, whatever happens to messages and servers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedkin.engines.flower.store import ROUNDS_KEPT, RequestPosition, SiteMemory, Store
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError

ONE = torch.tensor([0])
ZERO = torch.zeros(1, 2)


class Counter:
    """A client that remembers how often it was asked, and answers with the count."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.memory = folder, SiteMemory()

    def request(self, *place: int) -> float:
        """A new Store every time: what is not on disk is forgotten."""
        reply, _ = Store(self.folder).answer(RequestPosition(*place), self.memory, self.work)
        return float(reply["count"][0, 0])

    def work(self) -> Message:
        count: Tensor = self.memory.read("count", ONE, ZERO) + 1
        self.memory.write("count", ONE, count)
        return {"count": count}, {"good": True}


def test_memory_advances_with_every_request(tmp_path: Path):
    client = Counter(tmp_path)
    assert [client.request(1, number, call, 0) for number in (1, 2) for call in (0, 1)] == [
        1,
        2,
        3,
        4,
    ]


def test_a_repeated_request_gets_the_same_answer_and_changes_nothing(tmp_path: Path):
    client = Counter(tmp_path)
    assert [client.request(1, 1, 0, 0) for _ in range(3)] == [1, 1, 1]
    assert client.request(1, 2, 0, 0) == 2
    assert Store(tmp_path).now().advances == 2


@pytest.mark.parametrize("old", [(1, 2, 0, 0), (1, 1, 5, 0), (0, 9, 0, 0)])
def test_a_request_older_than_the_last_is_refused(tmp_path: Path, old: tuple[int, ...]):
    client = Counter(tmp_path)
    client.request(1, 2, 1, 0)
    with pytest.raises(FedkinError, match="is older than"):
        client.request(*old)
    assert client.request(1, 2, 2, 0) == 2


def test_a_server_that_goes_on_finds_the_beginning_of_its_round(tmp_path: Path):
    client = Counter(tmp_path)
    client.request(1, 1, 0, 0)
    client.request(1, 2, 0, 0)
    client.request(1, 2, 1, 0)  # the server dies here, in round 2
    assert [client.request(2, 2, 0, 0), client.request(2, 2, 1, 0), client.request(2, 3, 0, 0)] == [
        2,
        3,
        4,
    ]
    assert Store(tmp_path).now().advances == 4


def test_a_server_may_die_again_and_again(tmp_path: Path):
    client = Counter(tmp_path)
    for start in range(1, 6):
        assert client.request(start, 1, 0, 0) == 1
        assert client.request(start, 2, 0, 0) == 2


def test_going_on_further_than_the_client_has_been_needs_no_way_back(tmp_path: Path):
    client = Counter(tmp_path)
    client.request(1, 1, 0, 0)
    assert client.request(2, 4, 0, 0) == 2


def test_a_client_that_was_not_asked_in_a_round_goes_back_to_the_next_one(tmp_path: Path):
    client = Counter(tmp_path)
    client.request(1, 1, 0, 0)
    client.request(1, 4, 0, 0)
    assert client.request(2, 3, 0, 0) == 2  # as it was before round 4, where it was after round 1


def test_rounds_long_ago_cannot_be_asked_for_again(tmp_path: Path):
    client = Counter(tmp_path)
    for number in range(1, 9):
        client.request(1, number, 0, 0)
    assert len(list(tmp_path.glob("before-*"))) == ROUNDS_KEPT
    with pytest.raises(FedkinError, match="memory only goes back to round 6"):
        client.request(2, 5, 0, 0)
    assert client.request(2, 6, 0, 0) == 6


def test_what_a_server_asks_before_its_first_round_is_not_remembered_again(tmp_path: Path):
    client = Counter(tmp_path)
    assert client.request(1, 0, 0, 0) == 1
    assert client.request(1, 1, 0, 0) == 2
    assert client.request(2, 0, 0, 0) == 3  # answered with what there is, but not kept
    assert client.request(2, 1, 0, 0) == 2
    assert client.request(2, 2, 0, 0) == 3


@pytest.mark.parametrize("fatal", ["fsync", "link", "replace"])
def test_a_crash_while_writing_leaves_the_memory_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fatal: str
):
    client = Counter(tmp_path)
    client.request(1, 1, 0, 0)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path if fatal == "replace" else os, fatal, die)
        with pytest.raises(KeyboardInterrupt):
            client.request(1, 2, 0, 0)
    assert Store(tmp_path).now().place == RequestPosition(1, 1, 0, 0)
    assert client.request(1, 2, 0, 0) == 2


def test_nothing_is_kept_of_work_that_fails(tmp_path: Path):
    store, memory = Store(tmp_path), SiteMemory()

    def fail() -> Message:
        memory.write("count", ONE, ZERO + 7)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.answer(RequestPosition(1, 1, 0, 0), memory, fail)
    assert Counter(tmp_path).request(1, 1, 0, 0) == 1


def test_a_damaged_memory_is_told_by_its_file(tmp_path: Path):
    Store(tmp_path).path.write_bytes(b"nonsense")
    with pytest.raises(FedkinError, match=r"now\.safetensors is damaged"):
        Store(tmp_path).now()
