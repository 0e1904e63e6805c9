"""Losses of one example, and their derivatives by the model's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.errors import FedkinError, unknown

PerExample = Callable[[Tensor, Tensor], Tensor]
ClassWeights = Literal["balanced"] | Sequence[float]

# outputs from which products and sums fill the lanes that they compute in: with fewer outputs than
# examples it is twice as fast to let the examples fill them
LANES = 16


@dataclass(frozen=True)
class Loss:
    """`value(outputs [k, c], targets [k]) -> [k]`, differentiable; one number per example.

    `slope`, where given, is the derivative by the outputs in closed form; otherwise
    autograd finds it. `classes` tells whether targets are class numbers, `binary` that they
    are 0 and 1, told apart by the sign of a single output. `probabilities`: softmax (or, binary,
    sigmoid) of outputs trained by it are probabilities of the classes. `curvature` bounds the
    second derivative by the outputs, where it is bounded; `bend` is that derivative where
    outputs do not meet, `twice` its product with a direction where they do. `weights` are those
    of the classes, where examples of some count more (see `weighted`). `slopes` is `slope` for
    many rows at once, outputs [B, n, c] and targets [B, n], where that is faster.
    """

    name: str
    value: PerExample
    classes: bool
    slope: PerExample | None = None
    binary: bool = False
    probabilities: bool = False
    curvature: float = 1.0
    bend: PerExample | None = None
    twice: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    weights: tuple[float, ...] = ()
    slopes: PerExample | None = None

    def predict(self, outputs: Tensor) -> Tensor:
        """The class numbers [k] that outputs [k, c] speak for."""
        return (outputs[..., 0] > 0).long() if self.binary else outputs.argmax(-1)

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.slope is not None:
            return self.slope(outputs, targets)
        with torch.enable_grad():
            at = outputs.detach().requires_grad_()
            total = self.value(at, targets).sum()
        return torch.autograd.grad(total, at)[0]

    def derivatives(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """As `derivative`, for rows of examples: outputs [B, n, ...], targets [B, n, ...]."""
        if self.slopes is not None and outputs.dim() == 3 and targets.dim() == 2:
            return self.slopes(outputs, targets)
        return self.derivative(outputs.flatten(0, 1), targets.flatten(0, 1)).view_as(outputs)

    def turn(self, outputs: Tensor, targets: Tensor, along: Tensor) -> Tensor:
        """The change of `derivative` as outputs move along `along`."""
        if self.twice is not None:
            return self.twice(outputs, targets, along)
        if self.bend is not None:
            return self.bend(outputs, targets) * along
        with torch.enable_grad():
            at = outputs.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.value(at, targets).sum(), at, create_graph=True)
            if not slope.requires_grad:  # straight pieces, as the hinge's
                return torch.zeros_like(outputs)
            (found,) = torch.autograd.grad(
                (slope * along).sum(), at, allow_unused=True, materialize_grads=True
            )
        return found


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.dim() == 2 and outputs.shape[1] < LANES:
        return -torch.log_softmax(outputs.t(), 0).gather(0, targets.unsqueeze(0))[0]
    return F.cross_entropy(outputs, targets, reduction="none")


def _cross_entropy_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    # along the first dimension softmax is vectorised: seven times faster for ten classes
    share = torch.softmax(outputs.t(), 0).t() if outputs.dim() == 2 else torch.softmax(outputs, 1)
    rows = targets.unsqueeze(-1)
    return share.scatter_add_(-1, rows, torch.full_like(rows, -1, dtype=share.dtype))


def _cross_entropy_slopes(outputs: Tensor, targets: Tensor) -> Tensor:
    # with the classes in the middle softmax is vectorised, and narrow layers answer in that order
    share, rows = torch.softmax(outputs.transpose(1, 2), 1), targets.unsqueeze(1)
    share.scatter_add_(1, rows, torch.full_like(rows, -1, dtype=share.dtype))
    return share.transpose(1, 2)


def _cross_entropy_twice(outputs: Tensor, targets: Tensor, along: Tensor) -> Tensor:
    share = torch.softmax(outputs, 1)
    moved = share * along
    return moved - share * moved.sum(1, keepdim=True)


def _logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.softplus(outputs[:, 0]) - targets * outputs[:, 0]


def _as_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    return targets.reshape(outputs.shape).to(outputs.dtype)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    residual = outputs - _as_outputs(outputs, targets)
    return 0.5 * residual.square().flatten(1).sum(1)


def _hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over the classes j that are wrong, and the right one as 0, of max(0, 1 - o_y + o_j)."""
    rows = targets.unsqueeze(-1)
    margins = (1 - outputs.gather(-1, rows) + outputs).clamp_min(0)
    return margins.scatter(-1, rows, 0.0).mean(-1)


LOSSES = {
    loss.name: loss
    for loss in (
        Loss(
            "cross-entropy",
            _cross_entropy,
            classes=True,
            slope=_cross_entropy_slope,
            probabilities=True,
            curvature=1 / 2,
            twice=_cross_entropy_twice,
            slopes=_cross_entropy_slopes,
        ),
        Loss(
            "logistic",
            _logistic,
            classes=True,
            slope=lambda outputs, targets: torch.sigmoid(outputs) - targets[:, None],
            binary=True,
            probabilities=True,
            curvature=1 / 4,
            bend=lambda outputs, targets: torch.sigmoid(outputs) * torch.sigmoid(-outputs),
        ),
        Loss(
            "squared-error",
            _squared_error,
            classes=False,
            slope=lambda outputs, targets: outputs - _as_outputs(outputs, targets),
            bend=lambda outputs, targets: torch.ones_like(outputs),
        ),
        Loss("hinge", _hinge, classes=True),
    )
}


def get_loss(loss: str | Loss | PerExample) -> Loss:
    """A loss by name, or the user's own function of (outputs, targets), one value per example."""
    if isinstance(loss, Loss):
        return loss
    if callable(loss):
        return Loss(getattr(loss, "__name__", "own"), loss, classes=False)
    if loss not in LOSSES:
        raise unknown("loss", loss, LOSSES)
    return LOSSES[loss]


@cache  # so that two problems with the same weights have the same loss, and can be computed as one
def weighted(loss: Loss, weights: tuple[float, ...]) -> Loss:
    """A loss in which an example counts by the weight of its class: w[y] * loss."""
    table = torch.tensor(weights, dtype=torch.float64)

    def times(found: Tensor, targets: Tensor) -> Tensor:
        own = table.to(found.device, found.dtype)[targets.long()]
        return found * own.view(-1, *[1] * (found.dim() - 1))

    slope, bend, twice = loss.slope, loss.bend, loss.twice
    return replace(
        loss,
        value=lambda outputs, targets: times(loss.value(outputs, targets), targets),
        slope=slope and (lambda outputs, targets: times(slope(outputs, targets), targets)),
        bend=bend and (lambda outputs, targets: times(bend(outputs, targets), targets)),
        twice=twice and (lambda o, targets, along: times(twice(o, targets, along), targets)),
        curvature=loss.curvature * max(weights),
        weights=weights,
        slopes=None,
    )


def balanced_weights(counts: Sequence[int]) -> tuple[float, ...]:
    """n / (classes * examples of the class), as scikit-learn has it; 1 for a class without any."""
    here = sum(1 for count in counts if count)
    return tuple(sum(counts) / (here * count) if count else 1.0 for count in counts)


def class_weights_of(
    given: ClassWeights, classes: int | None, labels: Tensor | None
) -> tuple[float, ...]:
    """A weight for each class; `labels` are those of all training data, where they are here."""
    if classes is None:
        raise FedkinError("class_weights are for classes, and these targets are numbers")
    if isinstance(given, str):
        if given != "balanced":
            raise FedkinError(f"class_weights are balanced or a number per class, not '{given}'")
        if labels is None:
            raise FedkinError(
                "class_weights = balanced counts the classes of all clients, whose data are "
                f"elsewhere: give the {classes} weights themselves, as in 1,5"
            )
        return balanced_weights(torch.bincount(labels, minlength=classes).tolist())
    weights = tuple(float(weight) for weight in given)
    if len(weights) != classes:
        raise FedkinError(f"class_weights has {len(weights)} numbers for {classes} classes")
    if not all(0 < weight < float("inf") for weight in weights):
        raise FedkinError(f"class_weights must be above 0 and finite, not {list(weights)}")
    return weights
