"""Ways to compute the gradients of many models at once. All give the same numbers.

A kernel works on rows: models v [B, d], and for each row its own examples
x [B, n, ...], targets y [B, n] and weights w [B, n] (None: each counts 1/n).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from fedkin.core.kernels.compiled import Compiled
from fedkin.core.kernels.functional import OneByOne, Stacked
from fedkin.core.kernels.native import Native, UnsupportedLayerError
from fedkin.core.kernels.spec import ModelSpec
from fedkin.errors import unknown

__all__ = ["KERNELS", "Kernel", "ModelSpec", "UnsupportedLayerError", "make_kernel"]


class Kernel(Protocol):
    """Gradients, values and outputs of B models on B sets of examples."""

    def outputs(self, v: Tensor, x: Tensor) -> Tensor:
        """Each row's model on each row's examples: [B, n, ...]."""
        ...

    def grad(self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
        """Gradient by v of sum_j w_j loss_j: [B, d]."""
        ...

    def value_and_grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The weighted loss as a column [B, 1], and its gradient [B, d]."""
        ...

    def hvp(self, v: Tensor, u: Tensor, x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
        """Hessian of the weighted loss at v times u: [B, d]."""
        ...


KERNELS: dict[str, Callable[[ModelSpec], Kernel]] = {
    "native": Native,
    "vmap": Stacked,
    "autograd": OneByOne,
    "compiled": Compiled,
}


def make_kernel(name: str, spec: ModelSpec) -> Kernel:
    """A kernel by name; `native` raises UnsupportedLayerError for modules it cannot read."""
    if name not in KERNELS:
        raise unknown("kernel", name, KERNELS)
    return KERNELS[name](spec)
