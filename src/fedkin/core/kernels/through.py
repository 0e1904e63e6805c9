"""The gradient through a step, written out: by v of f(v - a*grad f(v)), all on one minibatch.

It is (I - a*H(v)) g(u) with u = v - a*g(v). On n examples the gradient of a linear layer is
S^T X, X [n, p] its inputs and S [n, q] the gradients by its outputs. While n is small next to p and
q it need not be written down: a product with W - a*S^T X is one with W and two with n x n numbers,
X' (W - a*S^T X)^T = X' W^T - a*(X' X^T) S, and in the first layer, where X' is X, the one with W
is known already. The same holds for the Hessian's product with g(u) = S'^T X'. A first layer then
takes two products with weights, as many as a plain gradient, and the others nine in place of three.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkin.core.kernels.layers import Activation, Flatten, Linear
from fedkin.core.kernels.spec import ModelSpec
from fedkin.core.kernels.tangents import NativeTwice
from fedkin.models.layout import Models


class Examples(NamedTuple):
    """Inputs of the first layer that learns, targets, and what each example counts."""

    x: Tensor
    y: Tensor
    weights: Any


class Pass(NamedTuple):
    """Of every layer: what its derivatives need (of a linear one its inputs), its outputs, and the
    gradient by these."""

    kept: list[Any]
    outputs: list[Tensor]
    slopes: list[Tensor]


class Step(NamedTuple):
    """A step from where a pass was: a*S of every layer, and, once a pass at its end has found them,
    X' X^T (+ 1 for a bias) and S' (a*S)^T of the linear ones."""

    begin: Pass
    slopes: list[Tensor]
    inputs_met: dict[int, Tensor]
    slopes_met: dict[int, Tensor]


class NativeThrough(NativeTwice):
    """The chain, and its gradient through a step."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._rest = self.layers[self.first :]

    def through_step(
        self, v: Tensor, a: Any, x: Tensor, y: Tensor, w: Tensor | None
    ) -> Tensor | None:
        """(I - a*H(v)) g(v - a*g(v)), a number a; None where gradients take less work."""
        for layer in self.layers[: self.first]:
            x = layer.forward(v, x)[0]
        if x.dim() != 3 or not self.is_less_work(x.shape[1]):
            return None
        models = self._parted(v)
        examples = Examples(x, y.flatten(0, 1), 1 / x.shape[1] if w is None else w.unsqueeze(2))
        here = self._pass(models, examples, None)
        step = Step(here, [a * slope for slope in here.slopes], {}, {})
        there = self._pass(models, examples, step)
        g = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        self._join(models, a, examples, step, there, self._parted(g))
        return g

    def is_less_work(self, n: int) -> bool:
        """Whether products with n x n numbers are less work than the gradients they spare."""
        spared = added = 0
        for layer in self._rest:
            if isinstance(layer, Linear):
                assert layer.weight is not None
                q, p = layer.weight.shape
                spared, added = (
                    (spared + 3 * p * q, added + 3 * n * (p + q))
                    if added
                    else (4 * p * q, n * (p + 2 * q))
                )
            elif not isinstance(layer, Activation | Flatten):
                return False
        return added <= spared

    def _pass(self, v: Models, examples: Examples, step: Step | None) -> Pass:
        """Forward and back at v, or at the end of a step from there."""
        x, found = examples.x, Pass([], [], [])
        for i, layer in enumerate(self._rest):
            if step is None or not isinstance(layer, Linear):
                out, own = layer.forward(v, x)
            else:
                met = torch.bmm(x, step.begin.kept[i].transpose(1, 2))
                step.inputs_met[i] = met if layer.bias is None else met.add_(1)
                out = layer.forward(v, x)[0] if i else step.begin.outputs[0]
                out, own = torch.baddbmm(out, met, step.slopes[i], alpha=-1), x
            x = out
            found.kept.append(own)
            found.outputs.append(out)
        slope = self.spec.loss.derivative(x.flatten(0, 1), examples.y).view_as(x)
        slope = slope * examples.weights
        for i, layer in reversed(list(enumerate(self._rest))):
            found.slopes.insert(0, slope)
            if isinstance(layer, Linear):
                assert layer.weight is not None
                if step is not None:
                    step.slopes_met[i] = torch.bmm(slope, step.slopes[i].transpose(1, 2))
                if i:
                    slope = torch.bmm(slope, layer.weight.view(v))
                if i and step is not None:
                    slope.baddbmm_(step.slopes_met[i], step.begin.kept[i], alpha=-1)
            elif isinstance(layer, Activation):
                slope = layer.slope(slope, found.kept[i])
        return found

    def _join(
        self, v: Models, a: Any, examples: Examples, step: Step, there: Pass, into: Models
    ) -> None:
        """g(u) - H(v) a*g(u): beside what the pass at v found go its changes along a*g(u)."""
        here, moved = step.begin, list[Tensor | None]([None])
        for i, layer in enumerate(self._rest):
            dx = moved[-1]
            if isinstance(layer, Linear):
                assert layer.weight is not None
                dy = torch.bmm(step.inputs_met[i].transpose(1, 2), a * there.slopes[i])
                if dx is not None:
                    dy.baddbmm_(dx, layer.weight.view(v).transpose(1, 2))
                dx = dy
            elif isinstance(layer, Activation):
                assert dx is not None
                dx = layer.slope(dx, here.kept[i])
            moved.append(dx)
        along = moved[-1]
        assert along is not None
        outputs = here.outputs[-1].flatten(0, 1)
        turned = self.spec.loss.turn(outputs, examples.y, along.flatten(0, 1)).view_as(along)
        dslope = turned * examples.weights
        for i, layer in reversed(list(enumerate(self._rest))):
            if isinstance(layer, Linear):
                dslope = self._join_linear(layer, i, v, step, there, moved[i], dslope, into)
            elif isinstance(layer, Activation):
                change = moved[i] if layer.by_input else moved[i + 1]
                dslope = layer.slope(dslope, here.kept[i])
                if layer.bend is not None:
                    assert change is not None
                    dslope.addcmul_(here.slopes[i], layer.bend(here.kept[i], change))

    def _join_linear(
        self, layer: Linear, i: int, v: Models, step: Step, there: Pass, dx: Tensor | None,
        dslope: Tensor, into: Models,
    ) -> Tensor:  # fmt: skip
        """A layer's part S'^T X' - dS^T X - S^T dX; gives the change of the gradient by its
        input."""
        assert layer.weight is not None
        here, slope = step.begin, there.slopes[i]
        rest = slope - dslope
        if layer.bias is not None:
            layer.bias.view(into).copy_(rest.sum(1))
        columns = here.kept[i]
        if dx is not None:
            rest = torch.cat([slope, dslope.neg(), here.slopes[i].neg()], 1)
            columns = torch.cat([there.kept[i], columns, dx], 1)
        torch.bmm(rest.transpose(1, 2), columns, out=layer.weight.view(into))
        if not i:
            return dslope
        met = step.slopes_met[i].transpose(1, 2)
        return torch.bmm(dslope, layer.weight.view(v)).baddbmm_(met, there.kept[i])
