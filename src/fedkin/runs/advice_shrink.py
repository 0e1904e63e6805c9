"""Sites' gains as one random-effects model sees them: each borrows from all the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from fedkin.runs.advice_scores import Gain

Floats = npt.NDArray[np.float64]
FEWEST_TO_BORROW = 10  # sites
POINTS = 160  # of the integral over tau
NEGLIGIBLE = 1e-7  # weight of a point that is left out
HALVINGS = 35  # of the interval that a quantile is looked for in
LEVELS = (0.025, 0.975)


@dataclass(frozen=True)
class Spread:
    """How much sites' true gains differ: their standard deviation tau with its 95 % interval.

    `p_value` is that of Cochran's Q: how often noise alone would make sites differ as much.
    """

    middle: float
    low: float
    high: float
    p_value: float

    @property
    def seen(self) -> bool:
        """Whether sites differ by more than noise makes them."""
        return self.p_value < 0.05


@dataclass(frozen=True)
class Effects:
    """Posterior of tau on a grid: points, their weights, and mu's mean and variance at each."""

    tau: Floats
    weight: Floats
    mu: Floats
    mu_variance: Floats


def lend_strength(
    gains: Sequence[Gain | None],
    rows: Sequence[int],
    overall: Gain | None = None,
    degrees: int | None = None,
) -> tuple[list[Gain | None], Spread | None]:
    """Every site's gain given those of all sites, and how much sites differ.

    Site i's gain is g_i ~ N(theta_i, v_i), theta_i ~ N(mu, tau^2). Neither mu nor tau is known,
    and both are integrated over: mu with a flat prior, tau with Jeffreys's, see `effects`. So sites
    are not taken for equal where the best guess of tau is 0. The result is theta_i's mean
    and 95 % interval given all g.

    v_i = c/rows_i, with c from the median over sites: a few splits say little of one site's own
    noise. `degrees` of freedom of each site's own variance tell how far the median is below the
    mean. With fewer than ten sites, or where noise is not known, nothing is borrowed.
    """
    known = [i for i, gain in enumerate(gains) if gain is not None and gain.low is not None]
    if len(known) < FEWEST_TO_BORROW:
        return list(gains), None
    own = [(gains[i], rows[i]) for i in known]
    g = np.array([gain.mean for gain, _ in own if gain])
    n = np.array([count for _, count in own], float)
    c = float(np.median(n * [(gain.error or 0.0) ** 2 for gain, _ in own if gain]))
    if degrees is not None:
        c /= float(special.chdtri(degrees, 0.5)) / degrees
    if c <= 0:
        return list(gains), None
    v = c / n
    # splits move all sites together, which sites' own noise does not show
    common = (overall.high - overall.mean) / 1.96 if overall and overall.high is not None else 0.0
    found = effects(g, v, common**2)
    share = found.tau**2 / (found.tau**2 + v[:, None])  # how much of its own gain a site keeps
    middle = share * g[:, None] + (1 - share) * found.mu
    deviation = np.sqrt(share * v[:, None] + (1 - share) ** 2 * found.mu_variance)
    mean = middle @ found.weight
    error = np.sqrt((deviation**2 + (middle - mean[:, None]) ** 2) @ found.weight)
    low, high = (quantile(middle, deviation, found.weight, level) for level in LEVELS)
    lent = list(gains)
    for place, i in enumerate(known):
        lent[i] = Gain(*(float(x[place]) for x in (mean, low, high, error)))
    return lent, spread_of(found, g, v)


def effects(g: Floats, v: Floats, least: float = 0.0) -> Effects:
    """The posterior of tau, and mu's given tau, of gains g with variances v.

    p(tau | g) is p(tau) prod_i N(g_i; mu, v_i + tau^2) with mu integrated out. The prior is
    Jeffreys's, p(tau) = tau sqrt(sum_i 1/(v_i + tau^2)^2): it knows no units and has nothing to
    be chosen, and three sites or more make the posterior proper. mu's variance is at least
    `least`.
    """
    s = float(np.sqrt(len(v) / (1 / v).sum()))  # the usual noise
    tau = np.geomspace(1e-3 * s, 10 * max(s, float(g.std())), POINTS)
    w = 1 / (v[:, None] + tau**2)
    total = w.sum(0)
    mu = (w * g[:, None]).sum(0) / total
    fit = (np.log(w) - w * (g[:, None] - mu) ** 2).sum(0) / 2 - np.log(total) / 2
    prior = np.log(tau) + np.log((w**2).sum(0)) / 2
    log = fit + prior + np.log(tau)  # the last: points are even in log tau
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    kept = weight > NEGLIGIBLE
    weight = weight[kept] / weight[kept].sum()
    return Effects(tau[kept], weight, mu[kept], np.maximum(1 / total[kept], least))


def quantile(middle: Floats, deviation: Floats, weight: Floats, level: float) -> Floats:
    """A quantile of each row's mixture of normal distributions, by halving."""
    low, high = (middle - 6 * deviation).min(1), (middle + 6 * deviation).max(1)
    for _ in range(HALVINGS):
        at = (low + high) / 2
        below = special.ndtr((at[:, None] - middle) / deviation) @ weight < level
        low, high = np.where(below, at, low), np.where(below, high, at)
    found: Floats = (low + high) / 2
    return found


def spread_of(found: Effects, g: Floats, v: Floats) -> Spread:
    """tau's middle and interval, and Cochran's test of whether it is 0."""
    up_to = np.cumsum(found.weight)
    low, middle, high = (
        float(found.tau[min(int(np.searchsorted(up_to, level)), len(up_to) - 1)])
        for level in (LEVELS[0], 0.5, LEVELS[1])
    )
    w = 1 / v
    q = float((w * (g - (w * g).sum() / w.sum()) ** 2).sum())
    return Spread(middle, low, high, float(special.chdtrc(len(g) - 1, q)))
