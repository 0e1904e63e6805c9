"""Sums of losses and squares at linear points, differentiated without autograd.

A function written for tensors, such as loss(beta) + lam/2*square(w - beta), is run once with
symbols in place of w and beta. What comes out lists the points at which it asks for losses
and squares. Its gradients then take one gradient of the loss per point and a few products,
and bounds on its curvature follow from bounds on the loss's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# a coefficient: a number, or a column with one number per row
Number = Any


@dataclass(frozen=True, eq=False)
class Place:
    """Where a block's numbers stand in a model's vector of `size` numbers."""

    index: Tensor
    size: int

    def __post_init__(self) -> None:
        first, count = int(self.index[0]), len(self.index)
        together = torch.equal(self.index, torch.arange(first, first + count))
        columns = slice(first, first + count) if together else self.index
        object.__setattr__(self, "columns", columns)  # a slice needs no copying

    def __call__(self, block: Any) -> Any:
        """A block (rows or a symbol) as a model that is zero elsewhere."""
        if isinstance(block, Point):
            return Point({name: (c, self) for name, (c, _) in block.parts.items()})
        model = block.new_zeros(*block.shape[:-1], self.size)
        model[..., self.columns] = block  # type: ignore[attr-defined]
        return model

    def pick(self, models: Tensor) -> Tensor:
        """This block of models [..., d]."""
        return models[..., self.columns]  # type: ignore[attr-defined]

    def rest(self) -> Place:
        """The places that are not in this block."""
        free = torch.ones(self.size, dtype=torch.bool)
        free[self.index] = False
        return Place(free.nonzero()[:, 0], self.size)

    def meets(self, other: Place) -> bool:
        return bool(torch.isin(self.index, other.index).any())


@dataclass(frozen=True, eq=False)
class Point:
    """A symbol: coefficient * block, each block possibly put in its place, summed over blocks."""

    parts: Mapping[str, tuple[Number, Place | None]]

    def __add__(self, other: Point) -> Point:
        parts = dict(self.parts)
        for name, (c, place) in other.parts.items():
            old, where = parts.get(name, (0.0, place))
            if where is not place:
                raise ValueError(f"block '{name}' stands in two places of one point")
            parts[name] = (old + c, place)
        return Point(parts)

    def __mul__(self, c: Number) -> Point:
        return Point({name: (c * own, place) for name, (own, place) in self.parts.items()})

    __rmul__ = __mul__

    def __neg__(self) -> Point:
        return -1.0 * self

    def __sub__(self, other: Point) -> Point:
        return self + -other

    def at(self, blocks: Mapping[str, Tensor]) -> Tensor:
        """The point for these rows of blocks."""
        total: Tensor | None = None
        for name, (c, place) in self.parts.items():
            rows = times(c, blocks[name])
            rows = rows if place is None else place(rows)
            total = rows if total is None else total + rows
        assert total is not None
        return total

    def product(self, one: str, other: str) -> float:
        """Coefficients of two blocks multiplied: what a second derivative has between them."""
        if one not in self.parts or other not in self.parts:
            return 0.0
        (a, here), (b, there) = self.parts[one], self.parts[other]
        if here is not None and there is not None and not here.meets(there):
            return 0.0
        return float(a * b)


@dataclass(frozen=True, eq=False)
class Formula:
    """sum of weight*loss(point) + sum of weight*|point|^2."""

    losses: tuple[tuple[Number, Point], ...] = ()
    squares: tuple[tuple[Number, Point], ...] = ()

    def __add__(self, other: Formula) -> Formula:
        return Formula(self.losses + other.losses, self.squares + other.squares)

    def __mul__(self, c: Number) -> Formula:
        losses, squares = (
            tuple((c * weight, point) for weight, point in terms)
            for terms in (self.losses, self.squares)
        )
        return Formula(losses, squares)

    __rmul__ = __mul__

    def gradient(self, wanted: Iterable[str]) -> Gradient:
        """The gradient by the wanted blocks, ready to be taken many times."""
        found = []
        for terms, factor in ((self.losses, 1.0), (self.squares, 2.0)):
            for weight, point in terms:
                own = [
                    (name, factor * weight * c, place)
                    for name, (c, place) in point.parts.items()
                    if name in wanted
                ]
                if own:
                    found.append((terms is self.losses, point, own))
        return Gradient(tuple(wanted), found)

    def curvature(self, loss: float, one: str, other: str) -> float:
        """The second derivative between two blocks if the loss's own were `loss` everywhere."""
        return sum(
            float(weight) * loss * point.product(one, other) for weight, point in self.losses
        ) + sum(2 * float(weight) * point.product(one, other) for weight, point in self.squares)

    def uses(self, block: str) -> bool:
        return any(block in point.parts for _, point in self.losses + self.squares)

    def place(self, block: str) -> Place | None:
        """Where a block stands in the model; None when it is a whole model, or not used."""
        for _, point in self.losses + self.squares:
            if block in point.parts:
                return point.parts[block][1]
        return None


@dataclass(frozen=True, eq=False)
class Gradient:
    """For every term: whether it is a loss, its point, and what it gives to the wanted blocks."""

    wanted: tuple[str, ...]
    terms: list[tuple[bool, Point, list[tuple[str, Number, Place | None]]]]

    def __call__(
        self, blocks: Mapping[str, Tensor], slope: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """By each wanted block; `slope` gives the gradient of the loss at a point."""
        found: dict[str, Tensor] = {}
        for is_loss, point, own in self.terms:
            inner = point.at(blocks)
            inner = slope(inner) if is_loss else inner
            for name, c, place in own:
                part = times(c, inner if place is None else place.pick(inner))
                found[name] = found[name] + part if name in found else part
        return [found[n] if n in found else torch.zeros_like(blocks[n]) for n in self.wanted]


def square(v: Any) -> Any:
    """|v|^2 of every row, as a column."""
    if isinstance(v, Point):
        return Formula(squares=((1.0, v),))
    return v.square().sum(1, keepdim=True)


def times(c: Number, rows: Tensor) -> Tensor:
    """c*rows, without multiplying where c is 1 or -1."""
    if isinstance(c, float) and abs(c) == 1.0:
        return rows if c > 0 else -rows
    product: Tensor = c * rows
    return product
