"""Sites whose answers the server gets as sums only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core.blocks import Sums
from fedkin.core.federation import Request
from fedkin.engines.flower.engine import Flower, SiteRequest, checked
from fedkin.engines.secure.collector import Answer, Collector, TooFewError, Total
from fedkin.engines.secure.crypto import Trust
from fedkin.engines.secure.fixed import COUNT_BITS, FRACTION_BITS, decode, read_layout, size_of
from fedkin.engines.secure.site import request_digest
from fedkin.engines.secure.terms import Facts, Terms
from fedkin.engines.wire import Message, requests
from fedkin.errors import FedkinError

PAUSE = 1.0  # seconds before sites that were not there are asked again


@dataclass(frozen=True)
class SecureSums:
    """How a run adds up: over at least so many sites, whose certificates this authority signed.

    `setup` is what the sites were told of the run, `samples` how many examples each has.
    """

    at_least: int
    trust: Trust
    setup: Mapping[str, Any]
    samples: Tensor


class SecureFlower(Flower):
    """An engine that has no site's answer, only sums (`fedkin.engines.secure`).

    A request for rows is passed on; sites answer it only if their answer is empty.
    """

    sums_only = True

    def __init__(self, secure: SecureSums, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.secure = secure
        self.noise_shares = secure.at_least
        # sums of this round's evaluations, which sites give once
        self._looked: dict[Terms, Sums] = {}
        self.stopping: Callable[[], bool] = lambda: False  # the run is to end: wait for nobody

    def sums(self, request: Request, weights: Tensor | None) -> Iterator[Sums]:
        """One sum, if enough sites stay until its end."""
        least = self.secure.at_least
        if request.each:
            raise FedkinError(
                f"a secure sum is of the same request to all sites, and this one gives each its "
                f"own {', '.join(sorted(request.each))}"
            )
        if len(request.at) < least:
            raise FedkinError(
                f"a request goes to {len(request.at)} sites only, and sums must be of at least "
                f"{least}: choose a larger fraction, or a smaller --secure-at-least"
            )
        weighing, scale = self._weighing(request, weights)
        alike = {**next(requests(request))[1], "weighing": weighing, "scale": scale}
        terms = Terms(
            self._about["experiment"], self._about["contender"], self._start, *request.place,
            request=request_digest(request.shared, alike, self.secure.setup), at_least=least,
            bits=FRACTION_BITS if request.remember else COUNT_BITS, most=len(request.at),
        )  # fmt: skip
        if terms in self._looked:
            yield self._looked[terms]
            return
        about = {"weighing": weighing, "scale": scale, "terms": terms.facts()}
        done = self._work(request, about)
        keys = {self._name(request, i): facts["said"] for i, facts in done.items()
                if facts["good"] and "said" in facts}  # fmt: skip
        places = {self._name(request, i): i for i in range(len(request.at))}
        collector = Collector(
            terms, self.secure.trust, lambda stage, asked: self._ask(request, terms, stage, asked),
            lambda name, why: self._leave_out(request, places[name], why),
        )  # fmt: skip
        try:
            total = collector.total(keys)
        except TooFewError as error:
            self.warn(f"round {request.place[0]}: no secure sum was had: {error}")
            return
        found = self._added(request, weights, done, total, terms, scale)
        if not request.remember:
            same_round = {t: s for t, s in self._looked.items() if t.round == terms.round}
            self._looked = {**same_round, terms: found}
        yield found

    def _weighing(self, request: Request, weights: Tensor | None) -> tuple[str, float]:
        """How sites weigh, which each of them checks, and a power of two above all weights."""
        if weights is None:
            return "same", 1.0
        known = self.secure.samples[request.at]
        if not torch.equal(weights.double().cpu(), known.double()):
            raise FedkinError(
                "sites can check that they count alike or by their number of examples, and this "
                "method weighs them otherwise: secure sums cannot be had"
            )
        return "samples", float(2 ** int(known.max()).bit_length())

    def _work(self, request: Request, about: Facts) -> dict[int, Facts]:
        """What sites say that have done the work, with keys for the sum.

        Too few are not enough: the others are waited for, unless they have refused.
        """
        outgoing = [
            SiteRequest(
                self.sites[facts["client"]], request.shared, own,
                {**facts, **self._facts(request, i), **about, "stage": "keys"},
            )
            for i, (own, facts) in enumerate(requests(request))
        ]  # fmt: skip
        refused: set[int] = set()
        told = False
        while True:
            answers = self.transport.exchange(outgoing, not request.remember)
            found = {}
            for i in sorted(answers):
                try:
                    found[i] = checked(answers[i], "work")[1]
                except FedkinError as error:
                    if i not in refused:
                        self._leave_out(request, i, str(error))
                    refused.add(i)
            absent = len(outgoing) - len(answers)
            least = self.secure.at_least
            if len(found) >= least or len(found) + absent < least:
                return found
            if self.stopping():
                raise KeyboardInterrupt
            if not told:
                self.warn(
                    f"round {request.place[0]}: {len(found)} sites have answered, and a secure sum "
                    f"needs {least}; waiting for the others"
                )
                told = True
            time.sleep(PAUSE)

    def _facts(self, request: Request, position: int) -> Facts:
        place = [self._start, *request.place, position]
        return {"kind": "secure", **self._about, "place": place}

    def _ask(
        self, request: Request, terms: Terms, stage: str, questions: Mapping[str, Facts]
    ) -> dict[str, Answer]:
        """One stage over the transport."""
        names: Sequence[str] = list(questions)
        about = {**self._facts(request, 0), "terms": terms.facts(), "stage": stage}
        outgoing = [SiteRequest(name, {}, {}, {**about, "said": questions[name]}) for name in names]
        answers = self.transport.exchange(outgoing, True)  # who is left out now weakens the sum
        return {names[i]: _read(answer) for i, answer in answers.items()}

    def _added(
        self,
        request: Request,
        weights: Tensor | None,
        done: Mapping[int, Facts],
        total: Total,
        terms: Terms,
        scale: float,
    ) -> Sums:
        """The sum with the work of its sites, and of those whose numbers were not finite."""
        there = {i for i in done if self._name(request, i) in total.sites}
        known = sorted(there | {i for i, facts in done.items() if not facts["good"]})
        layout = read_layout(done[min(there)]["said"]["layout"])
        reply = {k: v.to(self.device) * scale for k, v in
                 decode(total.words, terms.bits, layout).items()}  # fmt: skip
        w = torch.ones(len(request.at)) if weights is None else weights
        return Sums(
            torch.tensor(known),
            reply,
            float(w[sorted(there)].double().sum()),
            torch.tensor([i in there for i in known]),
            np.array([done[i]["gradients"] for i in known], np.int64),
            np.array([done[i]["samples"] for i in known], np.int64),
            8 * size_of(layout),
        )

    def _name(self, request: Request, position: int) -> str:
        return self.sites[int(request.at[position])]


def _read(answer: Message | str) -> Answer:
    """A site's answer as the protocol takes it."""
    if isinstance(answer, str):
        return answer
    tensors, facts = answer
    if "error" in facts:
        return f"it says '{str(facts['error'])[:300]}'"
    said, masked = facts.get("said"), tensors.get("masked")
    if not isinstance(said, dict):
        return "its answer cannot be read"
    if masked is None:
        return said, None
    if masked.dtype != torch.int64 or masked.dim() != 1:
        return "its numbers cannot be read"
    return said, masked.numpy().view(np.uint64)
