"""Which of several ways suits each client, from losses on a few examples that it held out.

A client alone has too few examples to tell, so strength is borrowed (empirical Bayes): of client i
the difference of two ways' mean losses is d_i = delta_i + noise, and delta_i itself comes from
N(mu, tau^2), mu and tau estimated from all clients (DerSimonian and Laird). The noise of an example
is taken to be the same everywhere: a client's own few would tell its size badly. Where clients do
not differ beyond the noise tau is 0, and all choose alike. Even so, noise is not the same
everywhere, and whoever follows it away from what is best for all loses more than who stays: a
client goes its own way only where it is 95 % sure.

Losses of models that give probabilities are compared at the sharpness that suits each way best: a
way that has learnt its few examples by heart is too sure of itself, and its loss grows while it
still answers as well as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedkin.core.losses import Loss
from fedkin.core.metrics import Answers

# deviations that an expected gain must exceed: one side of a normal distribution, 95 %
SURELY = 1.645
# how far ahead losses are followed, in times between two judgements, to see whether to wait: far,
# since training goes on for long
AHEAD = 4
# what outputs are multiplied by before they are judged; one of these suits a way, for all clients
SHARPNESS = (1.0, 2.0, 0.5, 0.25)


@dataclass(frozen=True)
class Losses:
    """Of N clients: held-out examples [N], sums of each way's losses [N, A] over them, and sums
    of the products of any two ways' losses [N, A, A]. Clients without examples were not heard."""

    count: Tensor
    total: Tensor
    product: Tensor

    @property
    def heard(self) -> Tensor:
        return self.count > 0

    @property
    def means(self) -> Tensor:
        """Every way's loss [A], the mean over clients that were heard."""
        mean: Tensor = (self.total[self.heard] / self.count[self.heard, None]).mean(0)
        return mean

    def of(self, at: Tensor) -> Losses:
        """Of some clients."""
        return Losses(self.count[at], self.total[at], self.product[at])

    def calibrated(self, ways: int) -> Losses:
        """Of ways that were judged at several sharpnesses each [N, ways * sharpnesses]: every one
        at that with its smallest mean loss."""
        tries = self.total.shape[1] // ways
        at = tries * torch.arange(ways) + self.means.view(ways, tries).argmin(1)
        return Losses(self.count, self.total[:, at], self.product[:, at[:, None], at])


def choose(losses: Losses, alone: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The way [N] of each client: the best one for all, or another that surely has a smaller loss.

    With it, how likely it is better than training alone (those ways); for clients that do: than
    any one of the other ways.
    """
    best = int(losses.means.argmin())
    expected, deviation = compare(losses, best)
    way = (expected + SURELY * deviation).argmin(1)
    apart = expected - expected.gather(1, way[:, None])
    wide = (deviation**2 + deviation.gather(1, way[:, None]) ** 2).sqrt().clamp(min=1e-12)
    better = torch.special.ndtr(apart / wide)
    own = torch.isin(torch.arange(better.shape[1]), torch.tensor(alone))
    return way, torch.where(own[way], better[:, ~own].amin(1), better[:, own].amin(1))


def overtaken(course: Tensor) -> bool:
    """Whether the best of several ways would be another if mean losses [times, A] went on from
    the last time as they came from the one before: who learns from many is slow at first."""
    if len(course) < 2:
        return False
    ahead = course[-1] + AHEAD * (course[-1] - course[-2])
    return int(ahead.argmin()) != int(course[-1].argmin())


def compare(losses: Losses, to: int) -> tuple[Tensor, Tensor]:
    """Every way's loss minus that of one of them, [N, A]: what to expect, and its deviation."""
    heard = losses.heard
    n = losses.count[heard, None].double()
    total, product = losses.total[heard].double(), losses.product[heard].double()
    d = (total - total[:, to : to + 1]) / n
    squares = product.diagonal(dim1=1, dim2=2) - 2 * product[:, to] + product[:, to, to, None]
    squares = (squares - n * d * d).clamp(min=0)
    pooled = squares.sum(0) / (n - 1).sum(0).clamp(min=1)
    error = (pooled / n).clamp(min=1e-24)  # ways may be the same
    mu, tau, of_mu = _random_effects(d, error)
    # clients that were not heard know what all the others are like
    own, pull = mu.repeat(len(heard), 1), torch.ones(len(heard), len(mu), dtype=torch.float64)
    own[heard], pull[heard] = d, error / (error + tau)
    return pull * mu + (1 - pull) * own, (pull * tau + pull * pull * of_mu).sqrt()


def _random_effects(d: Tensor, error: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """mu, tau^2 and the squared error of mu, for every column of differences d."""
    w = 1 / error
    fixed = (w * d).sum(0) / w.sum(0)
    excess = (w * (d - fixed) ** 2).sum(0) - (len(d) - 1)
    tau = (excess / (w.sum(0) - (w * w).sum(0) / w.sum(0)).clamp(min=1e-300)).clamp(min=0)
    w = 1 / (error + tau)
    return (w * d).sum(0) / w.sum(0), tau, 1 / w.sum(0)


def sharpnesses(loss: Loss) -> tuple[float, ...]:
    """At which outputs are judged; a loss that is not of probabilities knows one scale only."""
    return SHARPNESS if loss.probabilities else (1.0,)


def losses_by_sharpness(a: Answers) -> Tensor:
    """Every example's loss at each sharpness, [B, sharpnesses, n]."""
    scaled = (replace(a, outputs=times * a.outputs) for times in sharpnesses(a.loss))
    return torch.stack([own_losses(each) for each in scaled], 1)


def own_losses(a: Answers) -> Tensor:
    """Every example's loss; 0 for padding, and very large where a model has gone wrong."""
    found = a.loss.value(a.outputs.flatten(0, 1), a.targets.flatten(0, 1)).view(a.mask.shape)
    return found.double().nan_to_num(1e30, 1e30).where(a.mask > 0, 0.0)
