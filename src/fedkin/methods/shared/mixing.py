"""Who to learn with: the weights that every client gives to every client's data.

alpha_i = argmin over the simplex of sum_j alpha(j)*z_ij + lam*sum_j alpha(j)^2/n_j, for all
rows i at once. z_ij says how much client j's data would mislead client i, n_j how much there is
of it. Any further cost per j (the capacity of its model) is added to z before; an infinite
z_ij rules j out.
"""

from __future__ import annotations

from functools import cache
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from fedkin.core import rng
from fedkin.core.tables import Rows
from fedkin.errors import FedkinError

# numbers held at a time beside the results: gradients in float64, sorted rows of z
CHUNK = 1 << 20

# stands for lam -> 0: far below any z, far above what float64 can no longer divide
SMALLEST = 1e-200

# pairs of clients whose median distance stands for that of all, where there are very many
PAIRS = 100_000

# models that are read at a time
MODELS = 64

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


def median_of_some(g: Tensor) -> float:
    """The median of |g_i - g_j|^2 over PAIRS random pairs: of very many rows nearly that of all."""
    words = rng.bits(rng.key("pairs", len(g)), rng.positions(0, 2, PAIRS))[0]
    i, j = torch.from_numpy(rng.below(np.array([len(g), len(g) - 1]), words))
    j = j + (j >= i).long()  # another one
    parts = zip(*(some.split(max(1, CHUNK // g.shape[1])) for some in (i, j)), strict=True)
    apart = [(g[a] - g[b]).double().square().sum(1) for a, b in parts]
    return float(torch.cat(apart).median())


def scale_free(z: Tensor, n: Tensor, lam_rel: float) -> float:
    """lam = lam_rel * median(z) * mean(n), so that lam_rel means the same whatever the units.

    The median is over pairs of different clients whose z is known.
    """
    different = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    pairs = z[different & z.isfinite()]
    return lam_rel * float(pairs.median()) * float(n.double().mean()) if len(pairs) else 0.0


def nearest_of_all(z: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
    """Of every row the places of its `count` smallest z (without a count: of all), and these."""
    if count is None or count >= z.shape[1]:
        return torch.arange(z.shape[1]).repeat(len(z), 1), z
    kin = z.topk(count, largest=False).indices.sort(1).values
    return kin, z.gather(1, kin)


def only_nearest(z: Tensor, count: int | None) -> Tensor:
    """z with all but the `count` smallest of every row ruled out (none are without a count)."""
    if count is None or count >= z.shape[1]:
        return z
    near = z.topk(count, largest=False)
    return torch.full_like(z, torch.inf).scatter_(1, near.indices, near.values)


def simplex_weights(z: Tensor, n: Tensor, lam: float) -> Tensor:
    """The exact weights: alpha_j = max(0, t - z_ij)*n_j/(2 lam) with t such that they sum to 1.

    n has a number for every column or, where rows are about different clients, one for every z.
    lam = 0 is taken as the limit lam -> 0: all weight on the nearest client.
    """
    height = max(1, CHUNK // z.shape[1])
    masses = n.double().to(z.device).expand_as(z).split(height)
    blocks = zip(z.split(height), masses, strict=True)
    return torch.cat([_water_filling(rows.double(), mass, lam) for rows, mass in blocks])


def _water_filling(z: Tensor, n: Tensor, lam: float) -> Tensor:
    """Some rows of `simplex_weights`: sort by z, then one pass for the level t."""
    near, order = (z - z.amin(1, keepdim=True)).sort(1)
    mass = n.gather(1, order)
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
    place, sign = _projection(g.shape[1], size)
    rows = g * sign.to(g)
    return g.new_zeros(len(g), size).index_add_(1, place.to(g.device), rows)


@cache
def _projection(length: int, size: int) -> tuple[Tensor, Tensor]:
    """Where every entry of a gradient is added, and its sign."""
    words = rng.bits(rng.key("sketch"), rng.positions(0, length))
    place = torch.from_numpy(rng.below(np.array([size]), words)[0])
    return place, torch.from_numpy(1 - 2 * (words[0] & np.uint64(1)).astype(np.int8))


def weights_of_newcomers(
    g: Tensor, n: Tensor, others: Tensor, counts: Tensor, heard: Tensor, lam: float,
    most: int | None = None,
) -> Tensor:  # fmt: skip
    """The weights [M, N + 1] that M newcomers give N clients and, last, themselves.

    As for everybody: z is |g_i - g_j|^2, 0 for oneself. Clients not `heard` are ruled out, and all
    but the `most` nearest, of which oneself is one.
    """
    rows = []
    for own, size in zip(g.double(), n.tolist(), strict=True):
        parts = others.split(max(1, CHUNK // others.shape[1]))
        z = torch.cat([(part.double() - own).square().sum(1) for part in parts]).cpu()
        z = torch.cat([z.masked_fill(~heard, torch.inf), z.new_zeros(1)])[None]
        known = torch.cat([counts, torch.tensor([size])])
        rows.append(simplex_weights(only_nearest(z, most), known, lam))
    return torch.cat(rows)


def mean_of_kin(alpha: Tensor, models: Rows | Tensor, x: Tensor) -> Tensor:
    """By their weights the mean of the clients' models; x for one that is kin to nobody."""
    kin = alpha[:, : len(models)]
    found, total = x.new_zeros(len(alpha), x.shape[-1]), kin.sum(1, keepdim=True).to(x)
    for some in kin.any(0).nonzero()[:, 0].split(MODELS):
        rows = models[some]
        found += kin[:, some].to(x) @ (rows.read() if isinstance(rows, Rows) else rows)
    return torch.where(total > 0, found / total.clamp(min=1e-12), x)
