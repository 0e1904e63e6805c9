"""Answers as they arrive from the SuperLink: in pieces, and never larger than allowed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Array, RecordDict
from flwr.app import Message as FlowerMessage

from fedkin.engines.flower.private import (
    ConfirmMessageReceivedRequest,
    HttpGrid,
    PullAppMessagesRequest,
    PullObjectRequest,
    get_object_body,
    get_object_head_values_from_object_content,
    inflate_object_from_contents,
    iterate_object_tree,
)
from fedkin.engines.flower.text import shown
from fedkin.errors import FedkinError

MOST_PIECES = 10_000


@dataclass
class IncomingAnswer:
    """An answer that is arriving: Flower announces it before all its pieces are there."""

    answers_to: str
    key: str
    missing: list[str]
    pieces: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    problem: str | None = None
    lost: bool = False
    from_link: bool = False  # the SuperLink itself tells that a node is gone or out of time

    def fetch(self, grid: HttpGrid, limit: int) -> bool:
        """Fetch the pieces that are there; True when the answer is complete."""
        if len(self.missing) > MOST_PIECES:
            self.problem = f"it comes in {len(self.missing)} pieces"
        while self.missing and self.problem is None:
            request = PullObjectRequest(
                node=grid.node, run_id=grid.run.run_id, object_id=self.missing[-1]
            )
            found = grid._runtime_client.PullObject(request)
            if not found.object_found:
                self.problem = "a piece of it is missing"
            elif not found.object_available:
                return False
            else:
                self.pieces[self.missing.pop()] = found.object_content
                self.size += len(found.object_content)
                if self.size > limit:
                    self._too_large(limit)
        if self.problem is None and whole_size(self.pieces) > limit:
            self._too_large(limit)
        return True

    def _too_large(self, limit: int) -> None:
        self.problem = f"it is larger than the {limit / 1e6:.0f} MB that are allowed"
        self.pieces.clear()

    def content(self) -> RecordDict:
        """The records of a complete answer."""
        if self.problem is not None:
            raise FedkinError(self.problem)
        try:
            message = inflate_object_from_contents(self.key, self.pieces)
        except Exception as error:  # a malformed answer of one site must not stop the others
            reason = f"{type(error).__name__}: {shown(str(error))}"
            raise FedkinError(f"it cannot be unpacked ({reason})") from None
        if not isinstance(message, FlowerMessage):
            raise FedkinError("it is not a message")
        if message.has_error():
            # a message from the SuperLink to itself: the node has disconnected or timed out
            self.lost = message.metadata.src_node_id == message.metadata.dst_node_id
            raise FedkinError(f"Flower says '{shown(message.error.reason)}'")
        return message.content

    def discard(self, grid: HttpGrid) -> None:
        """Let the SuperLink delete the answer."""
        grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=grid.node, run_id=grid.run.run_id, message_object_id=self.key
            )
        )


def whole_size(pieces: Mapping[str, bytes]) -> int:
    """Bytes of all arrays put together; an array may name the same piece many times."""
    total = 0
    for content in pieces.values():
        try:
            kind, children, _ = get_object_head_values_from_object_content(content)
            if kind == Array.__name__:
                parts = json.loads(get_object_body(content, Array))["arraychunk_ids"]
                total += sum(len(pieces[children[part]]) for part in parts)
        except (ValueError, KeyError, IndexError, TypeError):
            continue  # unpacking it will report what is wrong
    return total


def arrivals(grid: HttpGrid, sent: Sequence[str]) -> Iterator[IncomingAnswer]:
    """Answers to the messages sent that have been announced since the last check."""
    if not sent:
        return
    found = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=sent))
    for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
        about = message.metadata
        if about.reply_to_message_id in sent:
            pieces = [piece.object_id for piece in iterate_object_tree(tree)]
            own = about.src_node_id == about.dst_node_id
            yield IncomingAnswer(about.reply_to_message_id, about.message_id, pieces, from_link=own)
