"""The one door between server and clients.

Everything that passes goes through `Federation.map` or `Federation.mean`, so bytes,
gradients and faults are counted and caught here, for every method and engine alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core import rng
from fedkin.core.accounts import Accounts
from fedkin.core.blocks import Block, Sums, add_up
from fedkin.core.faults import Faults, RequestFaults
from fedkin.core.participants import Participants
from fedkin.core.privacy import Privacy
from fedkin.core.problem import Problem
from fedkin.core.replies import Means, Replies
from fedkin.core.requests import (
    Engine,
    Request,
    Requests,
    SharingEngine,
    Step,
    SummingEngine,
    SumsOnlyEngine,
    parts,
)
from fedkin.core.robust import Aggregate, of_all
from fedkin.core.tables import Room, Rows
from fedkin.core.variants import PLAIN, Variant
from fedkin.errors import LOWER_LR, DivergedError, FedkinError

__all__ = ["Engine", "Federation", "Request", "Requests", "SharingEngine", "Step", "SummingEngine",
           "SumsOnlyEngine", "parts"]  # fmt: skip

# requests about the state after a round are numbered from here, not from those in the round
AFTER = 1 << 20


@dataclass
class Federation(Participants):
    """The server's view of its clients during one run.

    sampling: `fixed`, so many clients in every round, or `poisson`, each by a coin of its own.
    privacy: what makes sums differentially private. aggregate: what resists broken clients.
    """

    problem: Problem
    engine: Engine
    seed: int = 0
    fraction: float = 1.0
    faults: Faults = field(default_factory=Faults)
    sampling: str = "fixed"
    privacy: Privacy | None = None
    aggregate: Aggregate | None = None
    room: Room = field(default_factory=Room)  # where the server's own tables are

    def __post_init__(self) -> None:
        self.size = self.problem.num_clients
        if self.aggregate is not None and self.sums_only:
            raise FedkinError(
                f"aggregate = {self.aggregate.kind} looks at single answers, and with secure sums "
                "there are none: leave one of them out"
            )
        self.accounts = Accounts(self.size)
        self.round, self._call = 0, 0
        self.not_finite: list[int] = []
        self.records: dict[str, Tensor | float] = {}

    # rounds -------------------------------------------------------------------------

    def begin_round(self, number: int) -> None:
        """All randomness of a round follows from its number."""
        self.round, self._call, self.not_finite, self.records = number, 0, [], {}
        if self.privacy is not None:
            self.privacy.end_round()

    def after_round(self, number: int) -> None:
        """What is asked from here on, such as personal models, is told alike however often."""
        self.round, self._call = number, AFTER

    def record(self, **facts: Tensor | float) -> None:
        """Leave diagnostics of this round in the run folder: numbers, or a row of them."""
        self.records |= facts

    # the primitive -----------------------------------------------------------------

    def request(
        self,
        step: Step,
        at: Tensor | None = None,
        shared: Mapping[str, Tensor] | None = None,
        each: Mapping[str, Tensor | Rows] | None = None,
        variant: Variant = PLAIN,
        **hyper: Any,
    ) -> Request:
        """Put a request together, with random keys of its own.

        With a `variant` the clients work on that form of the problem: a smaller model.
        """
        if step.__closure__ or "<locals>" in step.__qualname__ or "<lambda>" in step.__qualname__:
            raise TypeError(f"step {step.__qualname__} must be a plain function of a module")
        at = torch.arange(self.size) if at is None else at
        held = {k: v for k, v in (each or {}).items() if isinstance(v, Rows)}
        tensors = {k: v for k, v in (each or {}).items() if isinstance(v, Tensor)}
        rows = {k: v[:, None] if v.dim() == 1 else v for k, v in tensors.items()}
        counts = {k: len(v) for k, v in rows.items()} | {k: len(v) for k, v in held.items()}
        for name, count in counts.items():
            if count != len(at):
                raise ValueError(f"each '{name}' has {count} rows for {len(at)} clients")
        place = (self.round, self._call)
        keys = rng.key(self.seed, *place, at.numpy())
        self._call += 1
        every = {k: v[None] for k, v in (shared or {}).items()}
        return Request(step, at, every, rows, hyper, keys, variant=variant, place=place, held=held)

    def map(
        self,
        step: Step,
        at: Tensor | None = None,
        shared: Mapping[str, Tensor] | None = None,
        each: Mapping[str, Tensor | Rows] | None = None,
        variant: Variant = PLAIN,
        **hyper: Any,
    ) -> Replies:
        """Run a step at clients; one row of answers per client, in the order of `at`."""
        return self._rows(self._guarded(self.request(step, at, shared, each, variant, **hyper)))

    def move(self, step: Step, at: Tensor, v: Rows, variant: Variant = PLAIN, **hyper: Any) -> None:
        """As `map`, of models in a table: each goes to a client, and the `v` that comes back takes
        its place. Rows of clients that do not answer stay as they are."""
        request = self._guarded(self.request(step, at, None, {"v": v}, variant, **hyper))
        for block, good in self._answers(request):
            rows = block.reply["v"]
            v.table.write(v.places[block.positions[good]], rows[good.to(rows.device)])

    def _guarded(self, request: Request) -> Request:
        """With what makes single clients' answers private, where the federation says so."""
        if self.privacy is None:
            return request
        if len(request.at.unique()) < len(request.at):
            raise FedkinError("a client is asked twice at once, which cannot be accounted for")
        return replace(request, guard=self.privacy.guard_row(request.step.__qualname__))

    def _rows(self, request: Request) -> Replies:
        count, rows = len(request.at), dict[str, Tensor]()
        arrived = torch.zeros(count, dtype=torch.bool)
        for block, good in self._answers(request):
            assert isinstance(block, Block)
            arrived[block.positions] = good
            for name, value in block.reply.items():
                if name not in rows:
                    rows[name] = value.new_zeros(count, *value.shape[1:])
                rows[name][block.positions[good]] = value[good.to(value.device)]
        return Replies(request.at, arrived, rows)

    def mean(
        self,
        step: Step,
        at: Tensor | None = None,
        shared: Mapping[str, Tensor] | None = None,
        each: Mapping[str, Tensor] | None = None,
        weights: Tensor | None = None,
        variant: Variant = PLAIN,
        **hyper: Any,
    ) -> Means:
        """As `map`, but only the mean over the clients that answered: never all rows in memory.

        `weights` has one number per client of the federation. When nobody answers
        the mean is zero. It is private, or robust, where the federation says so.
        """
        request = self.request(step, at, shared, each, variant, **hyper)
        if self.privacy is not None:
            return self._private_mean(request, weights, self.privacy)
        if self.aggregate is not None and self.aggregate.needs_rows:
            return self._robust_mean(request, weights, self.aggregate)
        w = None if weights is None else weights[request.at]
        return Means(*self._sums(request, w), use_up=True)

    def _sums(self, request: Request, w: Tensor | None) -> tuple[dict[str, Tensor], float, int]:
        """The sum of all answers in memory of its own, what they weigh and how many they are."""
        sums, total, answered = dict[str, Tensor](), 0.0, 0
        bound = self.aggregate
        for block, good in self._answers(request, w, summed=bound is None):
            own = None if w is None else w[block.positions]
            if bound is not None and isinstance(block, Block):
                block = replace(block, reply=bound.shortened(block.reply))
            answered += int(good.sum())
            if isinstance(block, Sums):
                total, seen = total + block.weight, sums
                sums = {n: seen[n] + v if seen else v.clone() for n, v in block.reply.items()}
            else:
                part = add_up(block, good, own, onto=sums)
                total, sums = total + part.weight, part.reply
        return sums, total, answered

    def _robust_mean(self, request: Request, weights: Tensor | None, how: Aggregate) -> Means:
        if weights is not None:
            raise FedkinError(how.no_weights)
        rows = self._rows(request)
        answered = int(rows.arrived.sum())
        found = of_all(rows, rows.arrived, how)
        return Means({k: v * answered for k, v in found.items()}, answered, answered)

    def _private_mean(self, request: Request, weights: Tensor | None, privacy: Privacy) -> Means:
        """The noisy sum of clipped answers, over the number of clients expected."""
        if not torch.equal(request.at, self.sample()):
            raise FedkinError(
                f"method '{privacy.method}' takes a mean over other clients than those sampled for "
                "the round, which cannot be accounted for"
            )
        shares = self.engine.noise_shares if isinstance(self.engine, SharingEngine) else None
        if shares is not None and weights is not None:
            raise FedkinError("clients that add noise themselves count alike: leave weighted out")
        step, (w, weight) = request.step.__qualname__, privacy.weights(weights, self.share)
        request = replace(request, guard=privacy.guard_sum(step, shares))
        assert request.guard is not None
        sums, _, _ = self._sums(request, None if w is None else w[request.at])
        sums = sums or self._nothing(request)
        if not sums:  # where not even the shape of an answer can be had, nothing is released
            return Means({}, weight, privacy.clients)
        means, facts = privacy.release(sums, request.guard, step, weight, self.random)
        self.record(**facts)
        return means

    def _nothing(self, request: Request) -> dict[str, Tensor]:
        """The sum over nobody, in the shapes that a client's answer would have."""
        each = {name: v.new_zeros(1, *v.shape[1:]) for name, v in request.each.items()}
        keys = rng.key(self.seed, *request.place, np.zeros(1, np.int64))
        one = replace(request, at=torch.zeros(1, dtype=torch.int64), each=each, keys=keys)
        return {name: torch.zeros_like(v[0]) for name, v in self.look(one).items()}

    def look(self, request: Request) -> Replies:
        """Run a request that costs nothing and changes nothing: for evaluation."""
        request = replace(request, remember=False)
        rows, arrived = dict[str, Tensor](), torch.zeros(len(request.at), dtype=torch.bool)
        for block in self._blocks(request):
            arrived[block.positions] = True
            for name, value in block.reply.items():
                if name not in rows:
                    rows[name] = value.new_zeros(len(request.at), *value.shape[1:])
                rows[name][block.positions] = value
        return Replies(request.at, arrived, rows)

    @property
    def sums_only(self) -> bool:
        """Whether single clients' answers cannot be had."""
        return isinstance(self.engine, SumsOnlyEngine)

    def look_mean(self, request: Request, weights: Tensor | None = None) -> Means:
        """As `look`, where only the mean can be had: of those clients that answered."""
        assert isinstance(self.engine, SummingEngine)
        request = replace(request, remember=False).read()
        sums, total, answered = dict[str, Tensor](), 0.0, 0
        for part in self.engine.sums(request, None if weights is None else weights[request.at]):
            total, answered = total + part.weight, answered + int(part.good.sum())
            sums = {name: sums.get(name, 0.0) + value for name, value in part.reply.items()}
        return Means(sums, total, answered)

    def _answers(
        self, request: Request, weights: Tensor | None = None, summed: bool = False
    ) -> Iterator[tuple[Block | Sums, Tensor]]:
        """Blocks of answers with the rows that count, after faults and with everything counted."""
        faulty = self.faults.draw(request.keys) if self.faults.any() else None
        down, bad, answers = request.bytes_per_row(), list[int](), 0
        blocks: Iterator[Block | Sums]
        if faulty is not None:
            blocks = self._with_faults(request, faulty)
        elif summed and isinstance(self.engine, SummingEngine):
            blocks = self.engine.sums(request, weights)
        else:
            blocks = self._blocks(request)
        for block in blocks if len(request.at) else ():
            clients = request.at[block.positions]
            good = block.good
            self.accounts.add(clients, down, block.row_bytes, block.gradients, block.samples)
            bad += () if bool(good.all()) else clients[~good].tolist()
            answers += len(clients)
            if faulty is not None:
                good = good & ~torch.from_numpy(faulty.late[block.positions.numpy()])
            yield block, good
        if faulty is not None:
            faulty.wait()
        self.not_finite += bad
        if answers == len(request.at) == len(bad) and answers and faulty is None:
            raise DivergedError(
                f"training diverged in round {self.round}: the answers of all {answers} clients "
                f"asked ({_names(self.problem, bad)}) are not finite; {LOWER_LR}"
            )

    def _blocks(self, request: Request) -> Iterator[Block]:
        """The engine's answers; of rows in tables some at a time are read, and asked about."""
        if not request.held:
            yield from self.engine.run(request)
            return
        first, *others = next(iter(request.held.values())).parts()
        for positions in (first, *others):
            part = request.rows(positions).read()
            if positions is not first and request.remember:  # no request has another's number
                part = replace(part, place=(self.round, self._call))
                self._call += 1
            for block in self.engine.run(part):
                yield replace(block, positions=positions[block.positions])

    def _with_faults(self, request: Request, faulty: RequestFaults) -> Iterator[Block]:
        """Answers of the clients that are reached, some of them spoilt."""
        reached = torch.from_numpy(np.flatnonzero(~faulty.lost))
        for block in self._blocks(request.rows(reached)) if len(reached) else ():
            positions = reached[block.positions]
            good = block.good & ~torch.from_numpy(faulty.nan[positions.numpy()])
            reply = faulty.spoil(block.reply, positions)
            yield replace(block, positions=positions, reply=reply, good=good)


def _names(problem: Problem, clients: list[int]) -> str:
    names = [problem.data.names[i] for i in clients[:5]]
    return ", ".join(names) + (", ..." if len(clients) > 5 else "")
