"""Who to learn with: the weights that every client gives to every client's data.

alpha_i = argmin over the simplex of sum_j alpha(j)*z_ij + lam*sum_j alpha(j)^2/n_j, for all
rows i at once. z_ij says how much client j's data would mislead client i, n_j how much there is
of it. Any further cost per j (the capacity of its model) is added to z before; an infinite
z_ij rules j out.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from torch import Tensor

from fedkin.core import rng
from fedkin.errors import FedkinError

# numbers held at a time beside the results: gradients in float64, sorted rows of z
CHUNK = 1 << 20

# stands for lam -> 0: far below any z, far above what float64 can no longer divide
SMALLEST = 1e-200

# of projected gradient steps that are to converge
TOLERANCE, MOST_STEPS = 1e-7, 100_000


def squared_distances(g: Tensor) -> Tensor:
    """z_ij = |g_i - g_j|^2 for all pairs of rows of g [N, d], from one Gram matrix in float64.

    What all rows have in common is taken out first: it changes no distance, and what would
    be lost by subtracting large numbers from each other is lost no more.
    """
    gram = torch.zeros(len(g), len(g), dtype=torch.float64, device=g.device)
    for columns in g.split(max(1, CHUNK // max(1, len(g))), 1):
        part = columns.double()
        part = part - part.mean(0)
        gram.addmm_(part, part.T)
    squares = gram.diagonal().clone()
    z = (squares[:, None] + squares - 2 * gram).clamp_(min=0)
    return z.fill_diagonal_(0)


def scale_free(z: Tensor, n: Tensor, lam_rel: float) -> float:
    """lam = lam_rel * median(z) * mean(n), so that lam_rel means the same whatever the units.

    The median is over pairs of different clients whose z is known.
    """
    different = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    pairs = z[different & z.isfinite()]
    return lam_rel * float(pairs.median()) * float(n.double().mean()) if len(pairs) else 0.0


def only_nearest(z: Tensor, count: int | None) -> Tensor:
    """z with all but the `count` smallest of every row ruled out (none are without a count)."""
    if count is None or count >= z.shape[1]:
        return z
    near = z.topk(count, largest=False)
    return torch.full_like(z, torch.inf).scatter_(1, near.indices, near.values)


def simplex_weights(z: Tensor, n: Tensor, lam: float) -> Tensor:
    """The exact weights: alpha_j = max(0, t - z_ij)*n_j/(2 lam) with t such that they sum to 1.

    lam = 0 is taken as the limit lam -> 0: all weight on the nearest client.
    """
    blocks = z.split(max(1, CHUNK // z.shape[1]))
    return torch.cat([_water_filling(rows.double(), n.double(), lam) for rows in blocks])


def _water_filling(z: Tensor, n: Tensor, lam: float) -> Tensor:
    """Some rows of `simplex_weights`: sort by z, then one pass for the level t."""
    near, order = (z - z.amin(1, keepdim=True)).sort(1)
    mass = n.to(z.device)[order]
    # t if exactly the k nearest had weight: it is the right one while it exceeds the k-th z
    levels = (2 * max(lam, SMALLEST) + (mass * near).cumsum(1)) / mass.cumsum(1)
    sharing = (levels > near).sum(1, keepdim=True)
    filled = (levels.gather(1, sharing - 1) - near).clamp_(min=0) * mass
    return torch.empty_like(z).scatter_(1, order, filled / filled.sum(1, keepdim=True))


def projected_gradient(z: Tensor, n: Tensor, lam: float, steps: int | None = None) -> Tensor:
    """The same weights as the paper finds them: alpha <- Proj(alpha - eta*(z + 2*lam*alpha/n)).

    eta = min(n)/(2 lam), the largest safe step. With so many `steps` these are T_alpha plain
    ones, however far they come: the error shrinks by e in about max(n)/min(n) of them.
    Without, Nesterov's momentum makes it sqrt(max(n)/min(n)), and they go on until no weight
    can be wrong by more than TOLERANCE.
    """
    lam, n = max(lam, SMALLEST), n.double().to(z.device)
    z = z.double() - z.double().amin(1, keepdim=True)  # digits for those that are near
    step, spread = float(n.min()) / (2 * lam), float(n.max() / n.min())
    momentum = (sqrt(spread) - 1) / (sqrt(spread) + 1) if steps is None else 0.0
    ahead = alpha = (n / n.sum()).expand_as(z)
    for _ in range(MOST_STEPS if steps is None else steps):
        before, alpha = alpha, project(ahead - step * (z + 2 * lam * ahead / n))
        # a step from `ahead` moves it by at least the share min(n)/max(n) of its error
        if steps is None and spread * float((alpha - ahead).abs().sum(1).max()) <= TOLERANCE:
            return alpha
        ahead = alpha + momentum * (alpha - before)
    if steps is None:
        raise FedkinError(
            f"weights by projected-gradient are not found after {MOST_STEPS} steps, since clients' "
            f"sample counts differ by a factor of {spread:.2g}: choose solver = 'exact', or give "
            "solver_steps to go on with what so many steps find"
        )
    return alpha


def project(y: Tensor) -> Tensor:
    """The nearest point of the simplex to every row of y: |a - y|^2 is the same problem."""
    return simplex_weights(-2 * y, torch.ones(y.shape[1]), 1.0)


def sketch(g: Tensor, size: int) -> Tensor:
    """Rows of `size` numbers whose squared distances are those of g, give or take sqrt(2/size).

    Every entry is added, with a random sign, to a random place: the same ones for all
    clients and always, so that sketches made anywhere can be compared.
    """
    words = rng.bits(rng.key("sketch"), rng.positions(0, g.shape[1]))
    place = torch.from_numpy(rng.below(np.array([size]), words)[0]).to(g.device)
    sign = torch.from_numpy(1 - 2 * (words[0] & np.uint64(1)).astype(np.int8)).to(g)
    return g.new_zeros(len(g), size).index_add_(1, place, g * sign)


def weights_of_newcomers(
    g: Tensor, n: Tensor, others: Tensor, counts: Tensor, heard: Tensor, lam: float
) -> Tensor:
    """The weights [M, N + 1] that M newcomers give N clients and, last, themselves.

    As for everybody: z is |g_i - g_j|^2, 0 for oneself. Clients not `heard` are ruled out.
    """
    z = squared_distances(torch.cat([others, g]))[len(others) :, : len(others)].cpu()
    z = z.masked_fill(~heard, torch.inf)
    rows = []
    for own, size in zip(z, n.tolist(), strict=True):
        known = torch.cat([counts, torch.tensor([size])])
        rows.append(simplex_weights(torch.cat([own, own.new_zeros(1)])[None], known, lam))
    return torch.cat(rows)


def mean_of_kin(alpha: Tensor, models: Tensor, x: Tensor) -> Tensor:
    """By their weights the mean of the clients' models; x for one that is kin to nobody."""
    kin = alpha[:, : len(models)].to(models)
    total = kin.sum(1, keepdim=True)
    return torch.where(total > 0, kin @ models / total.clamp(min=1e-12), x)
