"""Models whose layers' outputs are scaled, by way of their parameters."""

from __future__ import annotations

from torch import Tensor

from fedkin.core import rng
from fedkin.core.kernels.spec import Kernel


class Scaled:
    """The kernel of v -> f(scale*v).

    A layer's output is linear in its weights and biases: scaling these scales it.
    """

    def __init__(self, kernel: Kernel, scale: Tensor) -> None:
        self.kernel, self.scale = kernel, scale

    def outputs(self, v: Tensor, x: Tensor, statistics: Tensor | None = None) -> Tensor:
        return self.kernel.outputs(self.scale * v, x, statistics)

    def grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> Tensor:
        return self.kernel.grad(self.scale * v, x, y, w, noise) * self.scale

    def value_and_grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> tuple[Tensor, Tensor]:
        value, gradient = self.kernel.value_and_grad(self.scale * v, x, y, w, noise)
        return value, gradient * self.scale

    def hvp(
        self, v: Tensor, u: Tensor, x: Tensor, y: Tensor, w: Tensor | None,
        noise: rng.Bits | None = None,
    ) -> Tensor:  # fmt: skip
        return self.kernel.hvp(self.scale * v, self.scale * u, x, y, w, noise) * self.scale
