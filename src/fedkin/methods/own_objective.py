"""The unified objective at a client."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedkin.core.batches import Batch
from fedkin.core.client import Client
from fedkin.core.repetition import rows_of
from fedkin.errors import FedkinError
from fedkin.methods.shared.formulas import Gradient, times
from fedkin.methods.shared.objectives import BLOCKS, Settings, get_objective


def as_tensors(client: Client, **numbers: Any) -> dict[str, Any]:
    """Numbers as tensors of the models' type; the rest as it is."""
    like = client.problem.initial
    return {
        name: torch.tensor(value, dtype=like.dtype, device=like.device)
        if isinstance(value, float)
        else value
        for name, value in numbers.items()
    }


class OwnObjective:
    """f_m(w, beta_m) at a client: gradients, value, and the model the client uses.

    Gradients are by the blocks as they are stepped, before w is rescaled. `batch` is the
    minibatch to look at; without one it is all of the client's data. On a minibatch, blocks
    [k, B, ...] are k points of each client, taken in one go.
    """

    def __init__(self, client: Client, objective: str, **settings: Any) -> None:
        self.client, self.objective = client, get_objective(objective)
        # numbers as tensors: the small products of a step are then twice as fast
        self.settings = Settings(client.problem.layout, **as_tensors(client, **settings))
        self._gradients: dict[tuple[str, ...], Gradient] = {}
        self.formula = self.objective.formula(self.settings) if self.objective.closed else None

    def rows(self, chosen: Tensor, count: int) -> OwnObjective:
        """For some of `count` clients, while the client is these alone."""
        all_ = {name: value for name, value in vars(self.settings).items() if name != "layout"}
        own = rows_of(all_, chosen, count)
        alike = all(own[name] is value for name, value in all_.items())
        return self if alike else OwnObjective(self.client, self.objective.name, **own)

    @property
    def start(self) -> Tensor:
        """The beta every client starts from."""
        return self.objective.starts(self.settings, self.client.initial)[1]

    def grad_w(self, w: Tensor, beta: Tensor, batch: Batch | None = None) -> Tensor:
        return self.grads(w, beta, batch, ("w",))[0]

    def grad_beta(self, w: Tensor, beta: Tensor, batch: Batch | None = None) -> Tensor:
        return self.grads(w, beta, batch, ("beta",))[0]

    def grads(
        self, w: Tensor, beta: Tensor, batch: Batch | None = None, by: tuple[str, ...] = BLOCKS
    ) -> list[Tensor]:
        """The gradients by w and by beta (or by some of them), with one look at the data."""
        look = _Look(self.client, batch)
        if self.formula is not None:
            if by not in self._gradients:
                self._gradients[by] = self.formula.gradient(by)
            return self._gradients[by]({"w": w, "beta": beta}, look.grad)
        if w.dim() == 3:
            pairs = zip(w, beta, strict=True)
            found = zip(*(self.grads(*pair, batch, by) for pair in pairs), strict=True)
            return [torch.stack(parts) for parts in found]
        if self.objective.slope is not None:
            scale = self.objective.scale(self.settings)
            by_w = times(scale, self.objective.slope(look, times(scale, w), self.settings))
            return [by_w if name == "w" else torch.zeros_like(beta) for name in by]
        with torch.enable_grad():
            leaves = {
                name: rows.detach().expand(len(self.client), -1).requires_grad_()
                for name, rows in (("w", w), ("beta", beta))
            }
            total = self._value(_Differentiable(look), **leaves).sum()
            chosen = [leaves[name] for name in by]
            return list(
                torch.autograd.grad(total, chosen, allow_unused=True, materialize_grads=True)
            )

    def value(self, w: Tensor, beta: Tensor) -> Tensor:
        """f_m over all of the client's data, a column."""
        return self._value(_Look(self.client, None), w, beta)

    def model(self, w: Tensor, beta: Tensor) -> Tensor:
        """The model the client uses: that of the formula's last loss."""
        look = _Look(self.client, None, silent=True)
        self._value(look, w, beta)
        return look.points[-1].expand(len(self.client), -1)

    def _value(self, loss: Any, w: Tensor, beta: Tensor) -> Tensor:
        w = self.objective.scale(self.settings) * w
        value: Tensor = self.objective.rule(loss, w, beta, self.settings)
        return value


class _Look:
    """The client's loss on one minibatch or on all its data, as objectives call it.

    A silent one only notes the points at which the loss is asked for.
    """

    def __init__(self, client: Client, batch: Batch | None, silent: bool = False) -> None:
        self.client, self.batch, self.silent = client, batch, silent
        self.points: list[Tensor] = []

    def __call__(self, v: Tensor) -> Tensor:
        self.points.append(v)
        if self.silent:
            return torch.zeros_like(v[:, :1])
        return self.client.full_loss(v) if self.batch is None else self.client.loss(v, self.batch)

    def grad(self, v: Tensor) -> Tensor:
        return self.client.full_grad(v) if self.batch is None else self.client.grad(v, self.batch)

    def both(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Value and gradient, on a minibatch in one go."""
        if self.batch is None:
            return self(v), self.grad(v)
        self.points.append(v)
        return self.client.value_and_grad(v, self.batch)

    def hvp(self, v: Tensor, u: Tensor) -> Tensor:
        return self.client.hvp(v, u, self._minibatch())

    def through_step(self, v: Tensor, a: Any) -> Tensor:
        """The gradient by v of the loss after a gradient step of size a from there."""
        return self.client.through_step(v, a, self._minibatch())

    def _minibatch(self) -> Batch:
        if self.batch is None:
            raise FedkinError("this objective has gradients on minibatches only: use lsgd")
        return self.batch


class _Differentiable:
    """The same loss for autograd: its gradient by the fast kernels, its second by hvp."""

    def __init__(self, look: _Look) -> None:
        self.look = look

    def __call__(self, v: Tensor) -> Tensor:
        value: Tensor = _Loss.apply(v, self.look)  # type: ignore[no-untyped-call]
        return value

    def grad(self, v: Tensor) -> Tensor:
        slope: Tensor = _Slope.apply(v, self.look)  # type: ignore[no-untyped-call]
        return slope


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, look: _Look) -> Tensor:
        value, ctx.slope = look.both(v)
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        return outer[0] * ctx.slope, None


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, look: _Look) -> Tensor:
        ctx.look, ctx.v = look, v
        return look.grad(v)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        return ctx.look.hvp(ctx.v, outer[0]), None
