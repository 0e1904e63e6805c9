"""Ways to compute the gradients of many models at once. All give the same numbers.

A kernel works on rows: models v [B, d], and for each row its own examples
x [B, n, ...], targets y [B, n] and weights w [B, n] (None: each counts 1/n).
"""

from __future__ import annotations

from collections.abc import Callable

from fedkin.core.kernels.functional import OneByOne, Stacked
from fedkin.core.kernels.layer import UnsupportedLayerError
from fedkin.core.kernels.spec import Kernel, ModelError, ModelSpec
from fedkin.core.kernels.through import NativeThrough
from fedkin.errors import unknown

__all__ = ["KERNELS", "Kernel", "ModelError", "ModelSpec", "UnsupportedLayerError", "make_kernel"]


KERNELS: dict[str, Callable[[ModelSpec], Kernel]] = {
    "native": NativeThrough,
    "vmap": Stacked,
    "autograd": OneByOne,
}


def make_kernel(name: str, spec: ModelSpec) -> Kernel:
    """A kernel by name; `native` raises UnsupportedLayerError for modules it cannot read."""
    if name not in KERNELS:
        raise unknown("kernel", name, KERNELS)
    return KERNELS[name](spec)
