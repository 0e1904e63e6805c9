"""Every client on its own, through serialised messages, as a real deployment does it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core.blocks import Block
from fedkin.core.client import Client
from fedkin.core.federation import Request
from fedkin.core.guard import guard_of
from fedkin.core.memory import Memory
from fedkin.core.problem import Problem
from fedkin.core.replies import finite_rows
from fedkin.core.steps import find_step, step_name
from fedkin.core.variants import PLAIN, Variant, memory_of
from fedkin.engines.messages import pack, payload, plain_number, unpack

# named tensors, and facts as json can carry them
Message = tuple[dict[str, Tensor], dict[str, Any]]


class Site:
    """The clients' side: takes a request, runs the named step, gives an answer back."""

    def __init__(self, problem: Problem, memory: Memory) -> None:
        self.problem, self.memory = problem, memory
        self.kernel = problem.kernel("native" if problem.has_native() else "autograd")
        self._varied: dict[Variant, Site] = {PLAIN: self}

    def answer(self, arguments: dict[str, Tensor], facts: dict[str, Any]) -> Message:
        variant = Variant(**facts["variant"])
        if variant not in self._varied:
            self._varied[variant] = Site(
                self.problem.variant(variant), memory_of(self.memory, variant)
            )
        return self._varied[variant]._run(arguments, facts)

    def _run(self, arguments: dict[str, Tensor], facts: dict[str, Any]) -> Message:
        step = find_step(facts["step"])
        client = Client(
            self.problem,
            self.kernel,
            torch.tensor([facts["client"]]),
            np.array([facts["key"]], np.uint64),
            self.memory,
            facts["hyper"].get("lr", arguments.get("lr")),
        )
        on_device = {name: value.to(self.problem.device) for name, value in arguments.items()}
        guard = guard_of(facts.get("guard"))
        with torch.no_grad():
            reply = step(client, **on_device, **facts["hyper"])
            reply, good = client.finish(reply, facts["remember"])
            if guard is not None:
                reply = guard.protect(reply, on_device, np.array([facts["key"]], np.uint64))
        return reply, {
            "gradients": int(client.gradients[0]),
            "samples": int(client.samples[0]),
            "good": bool(good[0]),
        }


def requests(request: Request) -> Iterator[Message]:
    """For every requested client: the tensors for it alone, and the facts of its request."""
    hyper = {name: plain_number(value) for name, value in request.hyper.items()}
    for i, client in enumerate(request.at.tolist()):
        yield (
            {name: value[i : i + 1] for name, value in request.each.items()},
            {
                "step": step_name(request.step),
                "client": client,
                "key": int(request.keys[i]),
                "hyper": hyper,
                "remember": request.remember,
                "variant": request.variant.facts(),
                **({} if request.guard is None else {"guard": request.guard.facts()}),
            },
        )


def block(position: int, reply: dict[str, Tensor], facts: dict[str, Any]) -> Block:
    """One client's answer, as engines give it to the federation."""
    work = (np.array([facts[name]], np.int64) for name in ("gradients", "samples"))
    good = finite_rows(list(reply.values()), 1) & facts["good"]
    return Block(torch.tensor([position]), reply, good, *work)


class Wire:
    """Sends one message per client and counts the bytes that crossed, header and payload."""

    def __init__(self, problem: Problem, memory: Memory | None = None) -> None:
        self.problem = problem
        self.memory = memory or Memory(problem.num_clients)
        self.site = Site(problem, self.memory)
        self.payload_down = self.payload_up = self.headers = 0

    def run(self, request: Request) -> Iterator[Block]:
        for i, (own, facts) in enumerate(requests(request)):
            message = pack({**request.shared, **own}, **facts)
            answer = self._exchange(message)
            if request.remember:
                self.payload_down += payload(message)
                self.payload_up += payload(answer)
                self.headers += len(message) + len(answer) - payload(message) - payload(answer)
            reply, work = unpack(answer)
            yield block(i, {k: v.to(self.problem.device) for k, v in reply.items()}, work)

    def _exchange(self, message: bytes) -> bytes:
        reply, facts = self.site.answer(*unpack(message))
        return pack(reply, **facts)
