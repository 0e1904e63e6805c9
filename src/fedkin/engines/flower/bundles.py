"""Requests to the sites of one machine in one message, and their answers in one.

A message costs Flower a fixed time, and every array in it several requests of its own. So what
goes to all sites is there once, and what is for single sites or comes from them is one array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedkin.engines.flower.engine import SiteRequest
from fedkin.engines.flower.records import to_records
from fedkin.engines.messages import pack, unpack
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError

KIND, PACKED = "bundle", "packed"


def tie(requests: Sequence[SiteRequest]) -> RecordDict:
    """One message with these requests, which share what goes to all sites."""
    facts = {
        "kind": KIND,
        "experiment": requests[0].facts["experiment"],
        "sites": [request.site for request in requests],
        "requests": [request.facts for request in requests],
    }
    own = packed([request.own for request in requests])
    return to_records(facts, shared=requests[0].shared, own=own)


def packed(groups: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Named tensors of several sites as one array of bytes; nothing for nothing."""
    named = {f"{i}.{name}": v for i, group in enumerate(groups) for name, v in group.items()}
    if not named:
        return {}
    return {PACKED: torch.frombuffer(bytearray(pack(named)), dtype=torch.uint8)}


def unpacked(tensors: Mapping[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """The opposite: the tensors of each of so many sites."""
    groups: list[dict[str, Tensor]] = [{} for _ in range(count)]
    if PACKED not in tensors:
        return groups
    try:
        found, _ = unpack(tensors[PACKED].numpy().tobytes())
        for key, value in found.items():
            place, _, name = key.partition(".")
            groups[int(place)][name] = value
    except (ValueError, IndexError, TypeError, RecursionError, MemoryError) as error:
        raise FedkinError(f"what is for single sites cannot be read ({error})") from None
    return groups


def requests_of(
    tensors: dict[str, Tensor], facts: dict[str, Any]
) -> list[tuple[str, dict[str, Tensor], dict[str, Any]]]:
    """At the machine: whom each request is for, its tensors and its facts."""
    names, asked = facts.get("sites"), facts.get("requests")
    if not isinstance(names, list) or not isinstance(asked, list) or len(names) != len(asked):
        raise FedkinError("a message to several sites cannot be read")
    shared = {name: value for name, value in tensors.items() if name != PACKED}
    own = unpacked(tensors, len(names))
    return [(str(n), {**shared, **o}, f) for n, o, f in zip(names, own, asked, strict=True)]


def tied(answers: Sequence[Message]) -> Message:
    """The machine's answer: those of its sites, in the order asked."""
    return packed([reply for reply, _ in answers]), {"answers": [facts for _, facts in answers]}


def untie(answer: Message, count: int) -> list[Message | str]:
    """At the server: the answer of each of so many sites, or why it cannot be used."""
    tensors, facts = answer
    said = facts.get("answers")
    if "error" in facts:
        return [({}, facts)] * count
    if not isinstance(said, list) or len(said) != count:
        return ["its machine's answer is not one for each of its sites"] * count
    try:
        replies = unpacked(tensors, count)
    except FedkinError as error:
        return [str(error)] * count
    return [
        (reply, about) if isinstance(about, dict) else "it is not an answer"
        for reply, about in zip(replies, said, strict=True)
    ]
