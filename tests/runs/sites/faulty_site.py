"""A site that misbehaves, differently in every round."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedkin.engines.flower.records import from_records, to_records
from fedkin.runs.sites import joining
from fedkin.runs.sites.site import SiteWorker


def spoilt(message: Message, site: SiteWorker, huge: str) -> Message:
    """The right answer, made wrong in a way that depends on the round."""
    tensors, facts = from_records(message.content)
    reply, about = site.answer(tensors, facts)
    number = facts["place"][1] if facts["kind"] == "work" and facts["remember"] else 0
    wrong: dict[int, dict[str, Tensor]] = {
        1: {name: torch.full_like(value, torch.nan) for name, value in reply.items()},
        2: {name: torch.zeros(1, 7) for name in reply},
        3: {"something else": torch.zeros(1, 1)},
        4: {name: large(huge) for name in reply} if number == 4 else {},
        6: {name: torch.zeros(()) for name in reply},
    }
    if number == 5:
        garbage = RecordDict({"x": ConfigRecord({"json": "{"}), "y": ArrayRecord({})})
        return Message(garbage, reply_to=message)
    if number == 7:
        raise ZeroDivisionError("on purpose")
    if number == 8:
        about = {"gradients": -1, "samples": "many", "good": 3}
    return Message(to_records(about, reply=wrong.get(number, reply)), reply_to=message)


def large(kind: str) -> Tensor:
    """`zeros:N`, which travels as one piece repeated, or `noise:N`, all of which travels."""
    name, _, count = kind.partition(":")
    return torch.zeros(1, int(count)) if name == "zeros" else torch.rand(1, int(count))


def misbehave(words: list[str]) -> None:
    """Join as this site; the words are server, name, data, home and how much is too much."""
    server, name, data, home, huge = words
    joining.reply = lambda message, site: spoilt(message, site, huge)
    joining.join(joining.JoinOptions(server, SiteWorker(name, Path(data), Path(home)), None), print)
