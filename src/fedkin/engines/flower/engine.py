"""Every client on a device of its own: requests are sent to sites, and answers may be lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedkin.core.blocks import Block
from fedkin.core.federation import Request
from fedkin.core.memory import Memory
from fedkin.core.replies import Replies
from fedkin.engines.flower.plausible import MOST_WORK, outliers
from fedkin.engines.flower.text import shown
from fedkin.engines.wire import Message, block, requests
from fedkin.errors import FedkinError

Shape = tuple[tuple[str, torch.dtype, torch.Size], ...]


@dataclass(frozen=True)
class SiteRequest:
    """A request to one site: tensors that all sites get, tensors for this site only, and facts."""

    site: str
    shared: Mapping[str, Tensor]
    own: Mapping[str, Tensor]
    facts: Mapping[str, Any]


class Transport(Protocol):
    """Sends requests to sites and collects their answers."""

    def exchange(
        self, requests: Sequence[SiteRequest], everyone: bool = False
    ) -> dict[int, Message | str]:
        """Answers by the request's position, or why one cannot be used; lost answers are absent.

        With `everyone` all sites in reach are waited for, whatever share is enough otherwise.
        """
        ...


class Flower:
    """An engine whose clients are remote sites. What sites remember stays with them.

    `start` counts the server's starts: with the round, the request and the row it shows a
    site whether it has done this work before. An answer that cannot be read, or whose shape
    differs from most sites' answers, or that is implausible beside the others', is left out with
    a warning; `left_out` is told its site. `sizes` are the sites' training samples.
    """

    def __init__(
        self,
        transport: Transport,
        sites: Sequence[str],
        experiment: str,
        contender: str,
        start: int,
        device: torch.device,
        warn: Callable[[str], None],
        left_out: Callable[[str], None] = lambda site: None,
        sizes: Sequence[int] = (),
    ) -> None:
        self.transport, self.sites, self.device, self.warn = transport, tuple(sites), device, warn
        self.left_out, self.sizes = left_out, tuple(sizes)
        self.memory = Memory(len(sites))
        self._start = start
        self._about = {"experiment": experiment, "contender": contender}

    def run(self, request: Request) -> Iterator[Block]:
        """All valid answers that arrived, in the order asked; the rows of the others are lost."""
        came = self._exchange(request, "work")
        usual = _commonest([_shape(answer) for answer in came.values()])
        alike = {i: answer for i, answer in came.items() if _shape(answer) == usual}
        strange = {}
        # sums of evaluations are as large as a site has test data; and what a private answer is
        # left out for must not depend on other sites' answers
        if request.remember and request.guard is None:
            sizes = [self.sizes[int(request.at[i])] if self.sizes else 1 for i in alike]
            strange = outliers(alike, sizes)
        for i, (reply, facts) in came.items():
            if i in strange:
                self._leave_out(request, i, strange[i])
            elif i in alike:
                found = block(i, {k: v.to(self.device) for k, v in reply.items()}, facts)
                if not bool(found.good.all()):
                    self._leave_out(request, i, "it has numbers that are not finite")
                yield found
            else:
                shapes = f"{_words(_shape((reply, facts)))} where others' are {_words(usual)}"
                self._leave_out(request, i, f"it is {shapes}")

    def finish(self, request: Request) -> Replies:
        """Every site writes the model that this request gives it; nothing of it comes back."""
        arrived = torch.zeros(len(request.at), dtype=torch.bool)
        arrived[list(self._exchange(request, "finish"))] = True
        return Replies(request.at, arrived, {})

    def _exchange(self, request: Request, kind: str) -> dict[int, Message]:
        about = {"kind": kind, **self._about}
        outgoing = [
            SiteRequest(
                self.sites[facts["client"]],
                request.shared,
                own,
                {**facts, **about, "place": [self._start, *request.place, i]},
            )
            for i, (own, facts) in enumerate(requests(request))
        ]
        # an evaluation or an end that leaves healthy sites out would tell of others than all
        everyone = kind == "finish" or not request.remember
        answers = self.transport.exchange(outgoing, everyone)
        valid = {}
        for i in sorted(answers):
            try:
                valid[i] = checked(answers[i], kind)
            except FedkinError as error:
                self._leave_out(request, i, str(error))
        return valid

    def _leave_out(self, request: Request, position: int, reason: str) -> None:
        site, (number, _) = self.sites[int(request.at[position])], request.place
        self.left_out(site)
        self.warn(f"round {number}: the answer of '{site}' is left out: {reason}")


def checked(answer: Message | str, kind: str) -> Message:
    """The answer, if its facts have the types they must have."""
    if isinstance(answer, str):
        raise FedkinError(answer)
    reply, facts = answer
    if "error" in facts:
        raise FedkinError(f"it says '{shown(facts['error'])}'")
    if kind == "finish":
        return answer
    counts = [facts.get(name) for name in ("gradients", "samples")]
    if not all(type(count) is int and 0 <= count <= MOST_WORK for count in counts):
        raise FedkinError("its counts of work are not whole numbers that can be")
    if type(facts.get("good")) is not bool:
        raise FedkinError("it is not an answer to a step")
    if any(value.dim() == 0 or len(value) != 1 for value in reply.values()):
        raise FedkinError("its tensors are not one row each")
    return answer


def _shape(answer: Message) -> Shape:
    return tuple(sorted((name, v.dtype, v.shape) for name, v in answer[0].items()))


def _commonest(shapes: Sequence[Shape]) -> Shape:
    """The shape that most answers have; in a tie, the one that came first."""
    return Counter(shapes).most_common(1)[0][0] if shapes else ()


def _words(shape: Shape) -> str:
    words = ", ".join(f"{name} {str(kind)[6:]}{list(size)}" for name, kind, size in shape)
    return shown(words)
