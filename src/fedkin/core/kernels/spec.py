"""What a kernel must know of a problem, and what it offers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedkin.core import rng
from fedkin.core.losses import Loss
from fedkin.errors import FedkinError, as_user_error
from fedkin.models.layout import Layout

NOTHING = Layout(())

# channels that convolutions need for the channels-last order: with fewer, oneDNN writes beyond
# its memory (torch 2.13)
CHANNELS = 8


@dataclass(frozen=True)
class ModelSpec:
    """A module, its layout and the loss of one example.

    `layout` has the parameters that travel, `home` those that every client keeps to itself, and
    `statistics` what the module's norms go by where it is used. `random` tells that the module
    draws random numbers in training.
    """

    module: nn.Module
    layout: Layout
    loss: Loss
    home: Layout = NOTHING
    statistics: Layout = NOTHING
    random: bool = False

    @cached_property
    def whole(self) -> Layout:
        """All trainable parameters, those that stay at home last."""
        return self.layout.followed_by(self.home)

    def with_module(self, module: nn.Module, layout: Layout, statistics: Layout) -> ModelSpec:
        """The same for a smaller module."""
        return replace(self, module=module, layout=layout, statistics=statistics)


class ModelError(FedkinError):
    """The user's module (or loss) fails on a batch."""


@contextmanager
def model_errors(x: Tensor) -> Iterator[None]:
    """Say in a sentence what a module cannot do with examples x."""
    try:
        yield
    except FedkinError:
        raise
    except Exception as error:
        if as_user_error(error) is not None:  # memory, numbers too large
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        shape = "x".join(map(str, x.shape)) or "1"
        raise ModelError(
            f"the model or its loss fails on a batch of shape {shape} ({x.dtype}): {reason}"
        ) from error


def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """A module's outputs; of an object with `logits`, as Hugging Face's models give it, these."""
    return as_outputs(module(x))


def as_outputs(found: Any) -> Tensor:
    """The tensor of outputs in what a module returns."""
    logits = getattr(found, "logits", found)
    if not isinstance(logits, Tensor):
        raise FedkinError(
            f"the model's forward returns a {type(found).__name__}: return a tensor with one row "
            "of outputs per example (or an object with `logits`)"
        )
    return logits


def weights(w: Tensor | None, values: Tensor) -> Tensor:
    """w, or 1/n for each of the n examples in every row of `values` [B, n]."""
    return torch.full_like(values, 1 / values.shape[1]) if w is None else w


class Kernel(Protocol):
    """Gradients, values and outputs of B models on B sets of examples.

    `noise` has a key per row for what the models draw in training; without it they are held
    still: no dropout.
    """

    def outputs(self, v: Tensor, x: Tensor, statistics: Tensor | None = None) -> Tensor:
        """Each row's model on each row's examples: [B, n, ...].

        Norms go by each row's statistics, or by the batch where none are given.
        """
        ...

    def grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> Tensor:
        """Gradient by v of sum_j w_j loss_j: [B, d]."""
        ...

    def value_and_grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> tuple[Tensor, Tensor]:
        """The weighted loss as a column [B, 1], and its gradient [B, d]."""
        ...

    def hvp(
        self, v: Tensor, u: Tensor, x: Tensor, y: Tensor, w: Tensor | None,
        noise: rng.Bits | None = None,
    ) -> Tensor:  # fmt: skip
        """Hessian of the weighted loss at v times u: [B, d]."""
        ...
