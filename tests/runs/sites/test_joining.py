"""A site's own process: what it does when the server is not there, or Flower not at its best."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import RecordDict
from flwr.common.constant import SubStatus
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fedkin.engines.flower.processes import free_port
from fedkin.engines.flower.reach import check_host, wait_for_server
from fedkin.errors import FedkinError
from fedkin.runs.folder import take_lock
from fedkin.runs.sites import joining
from fedkin.runs.sites.joining import JoinOptions
from fedkin.runs.sites.site import SiteWorker


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was told Flower of tasks that end, with a message to answer in every one."""
    told: list[Any] = []
    monkeypatch.setattr(joining, "heartbeat", lambda client: nullcontext())
    monkeypatch.setattr(joining, "pull_message", lambda client: (RecordDict(), None))
    monkeypatch.setattr(joining, "Message", lambda content, reply_to: content)
    monkeypatch.setattr(joining, "push_task_output", lambda *words: told.append(words[2:]))
    return told


def test_an_answer_of_which_the_server_has_pieces_already_is_an_answer(
    outputs: list[Any], monkeypatch: pytest.MonkeyPatch
):
    # the same piece may have come from another site: then it is not asked for, and once the
    # others have left Flower refuses to take it
    def refuse(*_: object) -> None:
        raise ObjectPushError("piece", 1, "session")

    monkeypatch.setattr(joining, "push_message", refuse)
    monkeypatch.setattr(joining, "reply", lambda message, site: message)
    joining.answer_message(SimpleNamespace(), SimpleNamespace(say=print))  # type: ignore[arg-type]
    assert outputs == [(SubStatus.COMPLETED, "")]


def test_an_error_is_told_in_full_at_the_site_only(
    outputs: list[Any], monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise ValueError("patient Jones")

    pushed, said = list[Any](), list[str]()
    monkeypatch.setattr(joining, "push_message", lambda client, answer, _: pushed.append(answer))
    monkeypatch.setattr(joining, "reply", fail)
    joining.answer_message(SimpleNamespace(), SimpleNamespace(say=said.append))  # type: ignore[arg-type]
    assert outputs == [(SubStatus.FAILED, "ValueError")]
    assert pushed[0].reason == "ValueError"
    assert "patient Jones" in said[0]


def test_a_host_that_nobody_knows_is_told_at_once():
    with pytest.raises(FedkinError, match="there is no host"):
        check_host("no.such.host.invalid:8000")
    check_host("127.0.0.1:8000")


def test_a_server_that_does_not_answer_is_waited_for_as_long_as_agreed():
    said, address = list[str](), f"127.0.0.1:{free_port()}"
    with pytest.raises(FedkinError, match=f"no server at {address} within 0 seconds"):
        wait_for_server(address, None, said.append, patience=0)


def test_a_folder_serves_one_site_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(joining, "wait_for_server", lambda *_: None)
    site = SiteWorker("a", tmp_path / "a.csv", tmp_path)
    with (
        take_lock(tmp_path),
        pytest.raises(FedkinError, match="another process is working in"),
    ):
        joining.join(JoinOptions("127.0.0.1:1", site, None), lambda _: None)


def test_a_site_whose_key_is_in_use_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(joining, "wait_for_server", lambda *_: None)
    monkeypatch.setattr(joining, "answer_until_end", lambda *_: joining.End.NOT_TAKEN)
    monkeypatch.setattr(joining, "KEY_TIME", -1.0)
    site = SiteWorker("a", tmp_path / "a.csv", tmp_path)
    with pytest.raises(FedkinError, match="another one with its key is connected"):
        joining.join(JoinOptions("127.0.0.1:1", site, None), lambda _: None)
