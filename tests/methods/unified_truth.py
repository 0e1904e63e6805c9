"""The unified objectives written out once more in the simplest way, and optimised by L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples

OBJECTIVES = ("traditional", "personal", "mt2", "mx2", "apfl2", "ws2", "residual")
LAM, RELAX, ALPHA, SHARED = 0.3, 1.5, 0.2, 2  # ws2 and residual: the first two features shared


def logistic(
    clients: int = 4, samples: int = 12, dimension: int = 4, l2: float = 0.1, seed: int = 0,
    batch_size: int = 1, reshuffle: bool = False, length: float | None = None,
) -> Problem:  # fmt: skip
    """Logistic regression; every client has labels by a weight vector of its own.

    Inputs are normal, or all of one `length`.
    """
    g = torch.Generator().manual_seed(seed)
    parts = []
    common = torch.randn(dimension, generator=g, dtype=torch.float64)
    for _ in range(clients):
        own = common + torch.randn(dimension, generator=g, dtype=torch.float64)
        x = torch.randn(samples, dimension, generator=g, dtype=torch.float64)
        x = x if length is None else length * x / x.norm(dim=1, keepdim=True)
        parts.append((x, (x @ own > 0).long()))
    model = nn.Linear(dimension, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = ClientData(Examples.of(parts), Examples.of(parts), 2)
    return Problem(
        model, data, "logistic", l2, batch_size=batch_size, reshuffle=reshuffle,
        dtype=torch.float64,
    )  # fmt: skip


@dataclass
class Truth:
    """F(w, beta) of a logistic problem whose clients have equally many samples."""

    problem: Problem
    objective: str
    rescale: bool = True

    @property
    def clients(self) -> int:
        return self.problem.num_clients

    @property
    def sizes(self) -> tuple[int, int]:
        """How many numbers w and a beta have."""
        d = self.problem.size
        found = {
            "traditional": (d, 0),
            "personal": (0, d),
            "ws2": (SHARED, d - SHARED),
            "residual": (SHARED + 1, d - SHARED),
        }
        return found.get(self.objective, (d, d))

    def settings(self) -> dict[str, object]:
        """The same objective for the library."""
        parts = {"ws2": (f"0:{SHARED}", ""), "residual": (f"0:{SHARED + 1}", f"{SHARED}:9")}
        shared, own = parts.get(self.objective, ("", ""))
        return {
            "objective": self.objective, "lam": LAM, "relax": RELAX, "w_share": ALPHA,
            "rescale": self.rescale, "shared_parts": shared, "own_parts": own,
        }  # fmt: skip

    def loss(self, m: int, v: Tensor) -> Tensor:
        x, y = self.problem.data.train[m]
        value = F.binary_cross_entropy_with_logits(x @ v, y.double())
        return value + self.problem.l2 / 2 * v.square().sum()

    def own(self, m: int, w: Tensor, beta: Tensor) -> Tensor:
        """f_m(w, beta_m)."""
        if self.objective == "traditional":
            return self.loss(m, w)
        shared = w / self.clients**0.5 if self.rescale else w
        apart = (beta - shared).square().sum() if len(beta) == len(shared) else None
        none = torch.zeros(1, dtype=w.dtype)
        match self.objective:
            case "personal":
                return self.loss(m, beta)
            case "mt2":
                return RELAX * self.loss(m, shared) + self.loss(m, beta) + LAM / 2 * apart
            case "mx2":
                return self.loss(m, beta) + LAM / 2 * apart
            case "apfl2":
                mix = (1 - ALPHA) * beta + ALPHA * shared
                return RELAX * self.loss(m, shared) + self.loss(m, mix)
            case "ws2":
                return self.loss(m, torch.cat([shared, beta]))
            case "residual":  # the third feature belongs to both
                padded = torch.cat([shared, none.expand(self.problem.size - len(shared))])
                return self.loss(m, padded + torch.cat([none.expand(SHARED), beta]))
        raise AssertionError(self.objective)

    def value(self, flat: Tensor) -> Tensor:
        """F, with w and all beta in one vector."""
        w, betas = flat[: self.sizes[0]], flat[self.sizes[0] :].view(self.clients, -1)
        total = [self.own(m, w, betas[m]) for m in range(self.clients)]
        return torch.stack(total).mean()

    @property
    def dimension(self) -> int:
        return self.sizes[0] + self.clients * self.sizes[1]

    def optimum(self) -> tuple[Tensor, float]:
        """The minimiser and the minimum."""

        def both(point: np.ndarray) -> tuple[float, np.ndarray]:
            at = torch.tensor(point, requires_grad=True)
            value = self.value(at)
            (slope,) = torch.autograd.grad(value, at)
            return value.item(), slope.numpy()

        found = minimize(
            both, np.zeros(self.dimension), jac=True, method="L-BFGS-B",
            options={"ftol": 1e-16, "gtol": 1e-11, "maxiter": 5000, "maxfun": 20000},
        )  # fmt: skip
        return torch.from_numpy(found.x), float(found.fun)
