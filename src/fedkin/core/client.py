"""What a step sees: one client, or a block of clients that behaves like one.

Every tensor a step handles has one row per client in front (or a single row when
it is the same for all), and a number per client is a column [B, 1]. A step that
keeps to arithmetic on rows is right for one client and for a thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core.batches import Batch, sweep
from fedkin.core.kernels.functional import OneByOne, Stacked
from fedkin.core.kernels.native import Native
from fedkin.core.kernels.statistics import spread
from fedkin.core.kernels.tangents import NativeTwice
from fedkin.core.kernels.through import NativeThrough
from fedkin.core.members import Members
from fedkin.core.metrics import Answers
from fedkin.core.variants import Part
from fedkin.models.layout import empty_rows


class Client(Members):
    """A block of clients of one problem. Made by an engine, used by a step."""

    # gradients ---------------------------------------------------------------------

    def grad(self, v: Tensor, batch: Batch | None = None) -> Tensor:
        """g_i(v): the gradient on a minibatch, the next one unless given.

        v may also hold k models per client, [k, B, d]: all on the same minibatch, in one go.
        """
        batch = batch or self.next_batch()
        if v.dim() == 3:
            k = len(v)
            self._count(k, k * batch.sizes)
            x, y = (torch.cat([t] * k) for t in (batch.x, batch.y))
            w = None if batch.w is None else torch.cat([batch.w] * k)
            noise = None if batch.noise is None else np.tile(batch.noise, k)
            whole = self._whole(v, k)
            found = self.kernel.grad(whole.flatten(0, 1), x, y, w, noise).view_as(whole)
            return self._with_l2(v, self._learn(found, batch))
        self._count(1, batch.sizes)
        v = self._rows(v)
        found = self.kernel.grad(self._whole(v), batch.x, batch.y, batch.w, batch.noise)
        return self._with_l2(v, self._learn(found, batch))

    def copy(self, v: Tensor) -> Tensor:
        """v in a row of its own for every client, which `descend_` may use up."""
        return empty_rows(len(self), v).copy_(v)

    def descend_(
        self, v: Tensor, lr: Any, batch: Batch | None = None, into: Tensor | None = None,
        towards: Tensor | None = None, pull: Any = 0.0, minus: Tensor | None = None,
        times: Any = 1.0,
    ) -> Tensor:  # fmt: skip
        """into - pull*(into - towards) - times*minus - lr*g_i(v) on a minibatch, in into's own
        memory where it can be.

        `into` is v unless given; it has a row for every client. `towards` and `minus` are models,
        where given.
        """
        batch = batch or self.next_batch()
        into = v if into is None else into
        # what is pulled towards others in the end, and keeps 1 - pull, takes a larger step before
        kept = 1.0 if towards is None else 1 - pull
        nothing = bool((kept == 0).any()) if isinstance(kept, Tensor) else kept == 0
        plain = self.active is None and not self.problem.l2 and not nothing
        in_place = isinstance(self.kernel, Native | OneByOne) or (
            isinstance(self.kernel, Stacked) and not self._home.shape[1]
        )
        if not in_place or not plain:
            g = self.grad(v, batch)
            moved = into if towards is None else torch.lerp(into, towards, pull)
            return descend(moved if minus is None else descend(moved, times, minus), lr, g)
        self._count(1, batch.sizes)
        kernel: Any = self.kernel
        where = (v, lr / kept, batch.x, batch.y, batch.w, into)
        if isinstance(kernel, Native):
            kernel.descend_(*where)
        elif not self._home.shape[1]:
            kernel.descend_(*where, batch.noise)
        else:
            own = torch.empty_like(self._home, memory_format=torch.contiguous_format)
            kernel.descend_(*where, batch.noise, self._home, own)
            self._learn_at_home(own, batch)
        if towards is not None:
            into.lerp_(towards, pull)
        return into if minus is None else descend(into, times, minus, out=into)

    def value_and_grad(self, v: Tensor, batch: Batch | None = None) -> tuple[Tensor, Tensor]:
        """The loss on a minibatch as a column, and its gradient."""
        batch = batch or self.next_batch()
        self._count(1, batch.sizes)
        v = self._rows(v)
        value, gradient = self.kernel.value_and_grad(
            self._whole(v), batch.x, batch.y, batch.w, batch.noise
        )
        return self._with_l2_value(v, value), self._with_l2(v, self._learn(gradient, batch))

    def loss(self, v: Tensor, batch: Batch | None = None) -> Tensor:
        """The loss on a minibatch, a column; without dropout, as all losses."""
        batch = batch or self.next_batch()
        losses = self._losses(self._whole(v), batch)
        w = 1 / losses.shape[1] if batch.w is None else batch.w
        return self._with_l2_value(v, (losses * w).sum(1, keepdim=True))

    def hvp(self, v: Tensor, u: Tensor, batch: Batch | None = None) -> Tensor:
        """H_i(v) u on a minibatch; counted as one gradient."""
        batch = batch or self.next_batch()
        self._count(1, batch.sizes)
        v, u = self._whole(self._rows(v)), self._rows(u)
        found = self.kernel.hvp(v, self._still(u), batch.x, batch.y, batch.w, batch.noise)
        return self._with_l2(u, found[:, : u.shape[1]])

    def turning(self, v: Tensor, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """g_i(v), and what gives H_i(v) u for any u, on a minibatch; each counted as one gradient.

        Both together are cheaper than `grad` and `hvp` where layers have their derivatives
        written out: what the gradient computes is kept for the other.
        """
        if not isinstance(self.kernel, NativeTwice):
            return self.grad(v, batch), lambda u: self.hvp(v, u, batch)
        self._count(1, batch.sizes)
        v = self._rows(v)
        found, product = self.kernel.turning(self._whole(v), batch.x, batch.y, batch.w)

        def turn(u: Tensor) -> Tensor:
            self._count(1, batch.sizes)
            u = self._rows(u)
            return self._with_l2(u, product(self._still(u))[:, : u.shape[1]])

        return self._with_l2(v, self._learn(found, batch)), turn

    def through_step(self, v: Tensor, a: Any, batch: Batch) -> Tensor:
        """(I - a*H_i(v)) g_i(v - a*g_i(v)), the gradient by v of f_i(v - a*grad f_i(v)), on a
        minibatch; counted as three gradients."""
        plain = not self.problem.l2 and not self._home.shape[1]
        if plain and isinstance(self.kernel, NativeThrough):
            found = self.kernel.through_step(self._rows(v), a, batch.x, batch.y, batch.w)
            if found is not None:
                self._count(3, 3 * batch.sizes)
                return found
        slope, turn = self.turning(v, batch)  # the product goes the gradient's way once more
        there = self.grad(descend(v, a, slope), batch)
        return descend(there, a, turn(there))

    def full_grad(self, v: Tensor) -> Tensor:
        """The gradient of f_i over all training data, without dropout; counted as one gradient of
        n samples."""
        self._count(1, self._sizes)
        v = self._rows(v)
        whole, total = self._whole(v), torch.zeros_like(v, memory_format=torch.contiguous_format)
        for rows in self._swept():
            for batch, mask in self._sweep(self.problem.train, rows):
                found = self.kernel.grad(whole[rows], batch.x, batch.y, mask)
                total[rows] += found[:, : v.shape[1]]
        return self._with_l2(v, total / self.n)

    def full_loss(self, v: Tensor) -> Tensor:
        """f_i(v) over all training data, a column."""
        total = torch.zeros(len(self), 1, dtype=v.dtype, device=v.device)
        whole = self._whole(v)
        for rows in self._swept():
            of = whole if len(whole) == 1 else whole[rows]
            for batch, mask in self._sweep(self.problem.train, rows):
                total[rows] += (self._losses(of, batch) * mask).sum(1, keepdim=True)
        return self._with_l2_value(v, total / self.n)

    def smoothness(self) -> Tensor:
        """L', how fast a sample's gradient changes at most, a column; no more than a guess
        for models that are not linear: curvature of the loss * max |x|^2 (+ 1 for a bias) + l2."""
        largest = torch.zeros(len(self), 1, dtype=self.problem.dtype, device=self.problem.device)
        for batch, mask in self._sweep(self.problem.train):
            squares = batch.x.to(largest.dtype).flatten(2).square().sum(2) * mask
            largest = torch.maximum(largest, squares.amax(1, keepdim=True))
        biased = any(slot.name.endswith("bias") for slot in self.problem.layout.slots)
        return self.problem.spec.loss.curvature * (largest + biased) + self.problem.l2

    def outputs(self, v: Tensor, x: Tensor) -> Tensor:
        """Each client's model on its own examples x [B, n, ...]."""
        return self._outputs(self._whole(v), x)

    def statistics(self, v: Tensor) -> Tensor:
        """What the norms of each client's model go by: statistics of its own training data."""
        train = self.problem.train
        examples = (
            train.x[int(start) + spread(int(size))]
            for start, size in zip(self._starts, self._sizes, strict=True)
        )
        return self.problem.settler.rows(self._whole(self._rows(v)), examples)

    def complete(self, v: Tensor, statistics: Tensor | None = None) -> Tensor:
        """All that makes each client's module (see `Problem.complete`)."""
        v = self._whole(self._rows(v))
        if not self.problem.spec.statistics.slots:
            return v
        found = self.statistics(v[:, : self.problem.size]) if statistics is None else statistics
        return torch.cat([v, found.expand(len(v), -1)], 1)

    def stretches(self) -> Iterator[tuple[Batch, Tensor]]:
        """All training examples, a stretch at a time, with a mask: 1 for an example, 0 for none."""
        return self._sweep(self.problem.train)

    def answers(
        self,
        v: Tensor,
        part: str = "test",
        whole: bool = False,
        statistics: Tensor | None = None,
    ) -> Iterator[Answers]:
        """What models say about a part of the data, a stretch at a time or all at once.

        Norms go by the statistics of the client's own training data unless others are given.
        """
        if not self.problem.spec.statistics.slots:
            return self.judged(partial(self._outputs, self._whole(v)), part, whole)
        found = self.statistics(v) if statistics is None else statistics
        models, known = self._whole(self._rows(v)), found.expand(len(self), -1)
        return self.judged(lambda x: self.kernel.outputs(models, x, known), part, whole)

    def judged(
        self, outputs_of: Callable[[Tensor], Tensor], part: str, whole: bool
    ) -> Iterator[Answers]:
        """Answers of any function of inputs [B, n, ...], beside what is true."""
        found: list[tuple[Tensor, Tensor, Tensor]] | None = [] if whole else None
        for batch, mask in self._sweep(self.problem.part(part)):
            stretch = (outputs_of(batch.x), batch.y, mask)
            if found is None:
                yield self._answers(*stretch)
            else:
                found.append(stretch)
        if found:
            outputs, targets, masks = zip(*found, strict=True)
            yield self._answers(torch.cat(outputs, 1), torch.cat(targets, 1), torch.cat(masks, 1))

    def _answers(self, outputs: Tensor, targets: Tensor, mask: Tensor) -> Answers:
        problem = self.problem
        loss, scale = problem.spec.loss, problem.target_scale(self.who)
        return Answers(outputs, targets, mask, loss, problem.data.num_classes, scale)

    # ---------------------------------------------------------------------------------

    def _whole(self, v: Tensor, copies: int | None = None) -> Tensor:
        """Models with the parameters that stay at home; [k, B, d] for k copies."""
        if not self._home.shape[1]:
            return v
        if copies is not None:
            return torch.cat([v, self._home.expand(copies, *self._home.shape)], 2)
        return torch.cat([self._rows(v), self._home], 1)

    def _still(self, u: Tensor) -> Tensor:
        """Directions in which the parameters that stay at home do not move."""
        count = self._home.shape[1]
        return torch.cat([u, u.new_zeros(len(u), count)], 1) if count else u

    def _learn(self, gradient: Tensor, batch: Batch) -> Tensor:
        """Take the step of what stays at home, of size lr and once for every batch; gives the
        gradient of what travels."""
        count = self._home.shape[1]
        if not count:
            return gradient
        own, rest = gradient[..., -count:], gradient[..., :-count]
        self._learn_at_home(own.mean(0) if own.dim() == 3 else own, batch)
        return rest.contiguous()

    def _learn_at_home(self, slopes: Tensor, batch: Batch) -> None:
        if self._lr is None or batch is self._learnt:
            return
        moved = descend(self._home, self._lr, slopes)
        if self.active is not None:
            busy = torch.from_numpy(self.active.astype(bool))[:, None].to(moved.device)
            moved = torch.where(busy, moved, self._home)
        self._home, self._learnt = moved, batch

    def _outputs(self, v: Tensor, x: Tensor) -> Tensor:
        if self.problem.mixes:  # examples of different rows must not meet
            return self.kernel.outputs(v.expand(len(x), -1), x)
        if len(v) == 1:  # one model for all rows: one large product instead of many small ones
            outputs = self.kernel.outputs(v, x.flatten(0, 1)[None])[0]
            return outputs.view(*x.shape[:2], *outputs.shape[1:])
        return self.kernel.outputs(v, x)

    def _losses(self, v: Tensor, batch: Batch) -> Tensor:
        """Of whole models."""
        outputs = self._outputs(v, batch.x)
        values = self.problem.spec.loss.value(outputs.flatten(0, 1), batch.y.flatten(0, 1))
        return values.view(outputs.shape[:2])

    def _with_l2(self, v: Tensor, gradient: Tensor) -> Tensor:
        return gradient.add_(v, alpha=self.problem.l2) if self.problem.l2 else gradient

    def _with_l2_value(self, v: Tensor, value: Tensor) -> Tensor:
        if not self.problem.l2:
            return value
        return value + self.problem.l2 / 2 * v.square().sum(1, keepdim=True)

    def _swept(self) -> Iterable[Any]:
        """The rows that sweep over their data together, without those that are done: their work
        would be thrown away. Each alone where examples meet: they must not see how rows are cut."""
        busy: Any = slice(None) if self.active is None else self.active.nonzero()[0]
        return np.arange(len(self))[busy][:, None] if self.problem.mixes else (busy,)

    def _sweep(self, part: Part, rows: Any = slice(None)) -> Iterator[tuple[Batch, Tensor]]:
        """All examples of a part in stretches, with a mask: 1 for an example, 0 for padding."""
        starts, sizes = (t[self.who[rows]].numpy() for t in (part.starts, part.sizes))
        return sweep(part.x, part.y, starts, sizes, self.problem.dtype)


def descend(y: Tensor, lr: Any, g: Tensor, out: Tensor | None = None) -> Tensor:
    """y - lr*g in one pass over memory, for a number or a column lr."""
    if isinstance(lr, Tensor):
        return torch.addcmul(y, lr, g, value=-1, out=out)
    return torch.sub(y, g, alpha=lr, out=out)
