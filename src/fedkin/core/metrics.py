"""How good answers are: metrics of many clients at once, as sums that clients can give away.

Every metric is a function of sums over a client's examples. The sums of one client give its
value, the sums of all clients together the pooled value. Ranking metrics compare examples of
the same client only: their pooled value is weighted by how much each client has to compare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedkin.core.losses import Loss
from fedkin.errors import FedkinError, unknown

BINS = 10  # of confidence, for the calibration error


@dataclass(frozen=True)
class Answers:
    """What models said about examples: outputs [B, n, c], targets [B, n, ...], mask [B, n].

    `scale` [B, 2] holds the mean and deviation by which a client's targets were standardised.
    """

    outputs: Tensor
    targets: Tensor
    mask: Tensor
    loss: Loss
    num_classes: int | None
    scale: Tensor

    @cached_property
    def log_odds(self) -> Tensor:
        """Log-probabilities of the classes [B, n, C]; outputs where a loss gives none."""
        outputs = self.outputs.double()
        if self.loss.binary:
            yes = outputs[..., 0]
            no, yes = (torch.nn.functional.logsigmoid(side) for side in (-yes, yes))
            return torch.stack([no, yes], -1)
        return outputs.log_softmax(-1) if self.loss.probabilities else outputs

    @cached_property
    def probabilities(self) -> Tensor:
        return self.log_odds.exp()

    @cached_property
    def predicted(self) -> Tensor:
        """Class numbers."""
        return self.loss.predict(self.outputs)

    @cached_property
    def classes(self) -> int:
        return self.log_odds.shape[-1]

    def one_hot(self, labels: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(labels.long(), self.classes).double()

    @cached_property
    def errors(self) -> Tensor:
        """Prediction minus target in the target's own units [B, n, numbers]."""
        error = (self.outputs.flatten(2) - self.targets.reshape(*self.mask.shape, -1)).double()
        return error * self.scale[:, None, 1:]

    def own_units(self, values: Tensor) -> Tensor:
        """Standardised numbers as they were before."""
        mean, deviation = self.scale[:, None, :1], self.scale[:, None, 1:]
        return values.reshape(*self.mask.shape, -1).double() * deviation + mean


# what is summed of each example: [B, n, k]
Features = Callable[[Answers], Tensor]
# the sums of weighted examples, weights [B, r, n]: [B, r, k]
Sums = Callable[[Answers, Tensor], Tensor]


@dataclass(frozen=True)
class Metric:
    """A metric by name: its sums, and its value [...] from sums [..., k].

    `higher` tells which direction is better, `share` that it is shown in percent, `numbers`
    that it is for targets that are numbers. `whole` metrics need all of a client's examples at
    once. `per_class`: how sure it is depends on the rarest class. `shifted` gives the sums that
    targets larger by a number would have; without it that makes no difference.
    """

    name: str
    sums: Sums
    value: Callable[[Tensor], Tensor]
    higher: bool = True
    share: bool = False
    numbers: bool = False
    whole: bool = False
    per_class: bool = False
    needs_probabilities: bool = False
    shifted: Callable[[Tensor, float], Tensor] | None = None

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name.replace("_", " "))


TITLES = {
    "auc": "AUC", "f1": "F1", "rmse": "RMSE", "mae": "MAE", "r2": "R2", "brier": "Brier score",
}  # fmt: skip


def summed(features: Features) -> Sums:
    def sums(answers: Answers, weights: Tensor) -> Tensor:
        found = features(answers)
        return weights @ torch.where(answers.mask[..., None] > 0, found, 0)

    return sums


def ratio(sums: Tensor) -> Tensor:
    """First by second sum: NaN where there is nothing."""
    return sums[..., 0] / sums[..., 1]


def with_count(values: Tensor) -> Tensor:
    return torch.stack([values, torch.ones_like(values)], -1)


# classes --------------------------------------------------------------------------------


def _accuracy(a: Answers) -> Tensor:
    return with_count((a.predicted == a.targets).double())


def _recalls(a: Answers) -> Tensor:
    actual = a.one_hot(a.targets)
    return torch.cat([actual * a.one_hot(a.predicted), actual], -1)


def _mean_recall(sums: Tensor) -> Tensor:
    right, actual = sums.chunk(2, -1)
    return torch.nanmean(right / actual, -1)


def _confusion(a: Answers) -> Tensor:
    actual, predicted = a.one_hot(a.targets), a.one_hot(a.predicted)
    return torch.cat([actual * predicted, predicted, actual], -1)


def _f1(sums: Tensor) -> Tensor:
    """Of two classes the second one's; of more the mean over classes that occur."""
    right, predicted, actual = sums.chunk(3, -1)
    scores = 2 * right / (predicted + actual)
    return scores[..., 1] if scores.shape[-1] == 2 else torch.nanmean(scores, -1)


def _log_loss(a: Answers) -> Tensor:
    return with_count(-a.log_odds.gather(-1, a.targets.long()[..., None])[..., 0])


def _brier(a: Answers) -> Tensor:
    squares = (a.probabilities - a.one_hot(a.targets)).square().sum(-1)
    return with_count(squares / 2 if a.classes == 2 else squares)


def _bins(a: Answers) -> Tensor:
    """In the bin of its confidence: whether each answer was right, the confidence, and 1."""
    confidence = a.probabilities.gather(-1, a.predicted[..., None])
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64, device=confidence.device)[1:-1]
    place = torch.bucketize(confidence, edges)
    right = (a.predicted == a.targets).double()[..., None]
    parts = torch.cat([right, confidence, torch.ones_like(confidence)], -1)
    empty = parts.new_zeros(*a.mask.shape, BINS, 3)
    where = place[..., None].expand(*a.mask.shape, 1, 3)
    return empty.scatter(-2, where, parts[..., None, :]).flatten(-2)


def _calibration_error(sums: Tensor) -> Tensor:
    right, confidence, count = sums.view(*sums.shape[:-1], BINS, 3).unbind(-1)
    return (right - confidence).abs().sum(-1) / count.sum(-1)


# ranking --------------------------------------------------------------------------------


def _ranked(a: Answers) -> list[tuple[Tensor, Tensor]]:
    """(scores, is it this class) for each class, the second only where there are two."""
    if a.classes == 2:
        outputs = a.outputs.double()
        odds = outputs[..., 0] if a.loss.binary else outputs[..., 1] - outputs[..., 0]
        return [(odds, a.targets == 1)]
    return [(a.log_odds[..., c], a.targets == c) for c in range(a.classes)]


def _sorted(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rising order of each row, and where each example's ties begin and end in it."""
    rising, order = torch.where(mask > 0, scores, torch.inf).sort(-1)
    rising = rising.contiguous()
    ends = [torch.searchsorted(rising, rising, right=side) for side in (False, True)]
    return order, ends[0], ends[1]


def _before(weights: Tensor, ends: Tensor) -> Tensor:
    """Sum of the weights [B, r, n] of examples before each of some places."""
    run = torch.nn.functional.pad(weights.cumsum(-1), (1, 0))
    return run.gather(-1, ends[:, None].expand_as(weights))


def _concordant(a: Answers, weights: Tensor) -> Tensor:
    """Of each class: pairs in the right order (ties are half right), and pairs."""
    found = []
    for scores, positive in _ranked(a):
        order, first, last = _sorted(scores, a.mask)
        yes = positive.gather(-1, order)[:, None]
        w = weights.gather(-1, order[:, None].expand_as(weights))
        others = w * ~yes
        below = (_before(others, first) + _before(others, last)) / 2
        pairs = (w * yes).sum(-1) * others.sum(-1)
        found.append(torch.stack([(w * yes * below).sum(-1), pairs], -1))
    return torch.cat(found, -1)


def _precision(a: Answers, weights: Tensor) -> Tensor:
    """Of each class: the sum over its examples of the precision down to them, and how many."""
    found = []
    for scores, positive in _ranked(a):
        order, first, _ = _sorted(scores, a.mask)
        yes = positive.gather(-1, order)[:, None]
        w = weights.gather(-1, order[:, None].expand_as(weights))
        hits, total = (w * yes), w
        above = [part.sum(-1, keepdim=True) - _before(part, first) for part in (hits, total)]
        precision = torch.where(hits > 0, above[0] / above[1], 0)
        found.append(torch.stack([(hits * precision).sum(-1), hits.sum(-1)], -1))
    return torch.cat(found, -1)


def _mean_of_classes(sums: Tensor) -> Tensor:
    pairs = sums.view(*sums.shape[:-1], -1, 2)
    return torch.nanmean(pairs[..., 0] / pairs[..., 1], -1)


# numbers --------------------------------------------------------------------------------


def _squares(a: Answers) -> Tensor:
    return with_count(a.errors.square().mean(-1))


def _sizes(a: Answers) -> Tensor:
    return with_count(a.errors.abs().mean(-1))


def _variances(a: Answers) -> Tensor:
    """Squared error, target, its square, 1: all by the scale, which does not matter."""
    y = a.targets.reshape(*a.mask.shape, -1).double() * a.scale[:, None, 1:]
    parts = [a.errors.square().mean(-1), y.mean(-1), y.square().mean(-1)]
    return torch.stack([*parts, torch.ones_like(parts[0])], -1)


def _r2(sums: Tensor) -> Tensor:
    error, y, squares, n = sums.unbind(-1)
    around_mean = squares - y * y / n
    varied = around_mean > 1e-12 * squares.clamp_min(1e-300)
    return torch.where(varied, 1 - error / around_mean, torch.nan)


def _r2_shifted(sums: Tensor, by: float) -> Tensor:
    error, y, squares, n = sums.unbind(-1)
    return torch.stack([error, y + by * n, squares + 2 * by * y + by * by * n, n], -1)


def _median(a: Answers, weights: Tensor) -> Tensor:
    """The median error times the number of examples, and that number."""
    error = torch.where(a.mask > 0, a.errors.abs().mean(-1), torch.inf)
    rising, order = error.sort(-1)
    run = weights.gather(-1, order[:, None].expand_as(weights)).cumsum(-1).contiguous()
    total = run[..., -1:]
    middle = [((total - 1) / 2).floor(), (total / 2).floor()]
    places = [torch.searchsorted(run, m, right=True) for m in middle]
    all_rows = rising[:, None].expand_as(run)
    found = [all_rows.gather(-1, p.clamp(max=run.shape[-1] - 1)) for p in places]
    value = torch.where(total > 0, (found[0] + found[1]) / 2, 0)
    return torch.cat([value * total, total], -1)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", summed(_accuracy), ratio, share=True),
        Metric("balanced_accuracy", summed(_recalls), _mean_recall, share=True, per_class=True),
        Metric("auc", _concordant, _mean_of_classes, whole=True, per_class=True),
        Metric("average_precision", _precision, _mean_of_classes, whole=True, per_class=True),
        Metric("f1", summed(_confusion), _f1, per_class=True),
        Metric("log_loss", summed(_log_loss), ratio, higher=False, needs_probabilities=True),
        Metric("brier", summed(_brier), ratio, higher=False, needs_probabilities=True),
        Metric(
            "calibration_error",
            summed(_bins),
            _calibration_error,
            higher=False,
            needs_probabilities=True,
        ),
        Metric("rmse", summed(_squares), lambda s: ratio(s).sqrt(), higher=False, numbers=True),
        Metric("mae", summed(_sizes), ratio, higher=False, numbers=True),
        Metric("r2", summed(_variances), _r2, numbers=True, shifted=_r2_shifted),
        Metric("median_error", _median, ratio, higher=False, numbers=True, whole=True),
    )
}


def get_metric(name: str) -> Metric:
    """A metric by name: one of ours, or one that was made known here."""
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    return METRICS[name]


def check_metric(metric: Metric, loss: Loss, num_classes: int | None) -> None:
    """Refuse a metric that says nothing about such targets."""
    numbers = num_classes is None
    if metric.name in BUILT_IN and metric.numbers != numbers:
        kind = "numbers" if metric.numbers else "classes"
        own = [name for name in BUILT_IN if METRICS[name].numbers == numbers]
        raise FedkinError(
            f"metric '{metric.name}' is for targets that are {kind}, and these are "
            f"{'numbers' if numbers else 'classes'}: choose from {', '.join(own)}"
        )
    if metric.needs_probabilities and not loss.probabilities:
        raise FedkinError(
            f"metric '{metric.name}' needs probabilities, which a model trained by the loss "
            f"'{loss.name}' does not give"
        )


BUILT_IN = tuple(METRICS)
