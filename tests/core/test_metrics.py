"""Metrics of many clients at once are scikit-learn's of each of them."""

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from fedkin.core.losses import LOSSES
from fedkin.core.metrics import BINS, METRICS, Answers, check_metric, get_metric
from fedkin.errors import FedkinError

CLIENTS, MOST = 7, 60


def answers_of(classes, seed=0, binary=False, ties=False, mean=0.0, deviation=1.0):
    """Random answers of clients with 20 to 60 examples each, and the same one by one in numpy."""
    g = np.random.default_rng(seed)
    sizes = g.integers(20, MOST + 1, CLIENTS)
    mask = np.arange(MOST) < sizes[:, None]
    outputs = g.normal(size=(CLIENTS, MOST, 1 if binary or classes is None else classes))
    outputs = (8 * outputs).round() / 8 if ties else outputs
    if classes is None:
        y = outputs[..., 0] + g.normal(size=(CLIENTS, MOST))
    else:
        y = g.integers(0, classes, (CLIENTS, MOST))
        y[:, :classes] = np.arange(classes)  # every class at every client
    loss = LOSSES["squared-error" if classes is None else "logistic" if binary else "cross-entropy"]
    scale = torch.tensor([[mean, deviation]], dtype=torch.float64).expand(CLIENTS, 2)
    found = Answers(
        torch.from_numpy(outputs), torch.from_numpy(y), torch.from_numpy(mask).double(), loss,
        classes, scale,
    )  # fmt: skip
    own = [(y[i, :n], outputs[i, :n]) for i, n in enumerate(sizes)]
    return found, own


def values(name, answers, weights=None):
    metric = METRICS[name]
    weights = answers.mask[:, None] if weights is None else weights
    return metric.value(metric.sums(answers, weights)[:, 0]).numpy()


def probabilities(outputs):
    if outputs.shape[1] == 1:
        yes = expit(outputs[:, 0])
        return np.stack([1 - yes, yes], 1)
    return softmax(outputs, 1)


def calibration(y, p):
    confidence, right = p.max(1), p.argmax(1) == y
    true, said = calibration_curve(right, confidence, n_bins=BINS)
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence)
    counts = np.bincount(place, minlength=BINS)
    return (np.abs(true - said) * counts[counts > 0]).sum() / counts.sum()


CLASSES = {
    "accuracy": lambda y, p: sk.accuracy_score(y, p.argmax(1)),
    "balanced_accuracy": lambda y, p: sk.balanced_accuracy_score(y, p.argmax(1)),
    "auc": lambda y, p: sk.roc_auc_score(y, p[:, 1] if p.shape[1] == 2 else p, multi_class="ovr"),
    "average_precision": lambda y, p: (
        sk.average_precision_score(y, p[:, 1])
        if p.shape[1] == 2
        else sk.average_precision_score(np.eye(p.shape[1])[y], p)
    ),
    "f1": lambda y, p: sk.f1_score(
        y, p.argmax(1), average="binary" if p.shape[1] == 2 else "macro", zero_division=0
    ),
    "log_loss": lambda y, p: sk.log_loss(y, p, labels=range(p.shape[1])),
    "brier": lambda y, p: (
        sk.brier_score_loss(y, p[:, 1])
        if p.shape[1] == 2
        else ((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean()
    ),
    "calibration_error": calibration,
}  # fmt: skip
NUMBERS = {
    "rmse": sk.root_mean_squared_error,
    "mae": sk.mean_absolute_error,
    "r2": sk.r2_score,
    "median_error": sk.median_absolute_error,
}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("classes", "binary"), [(2, True), (2, False), (5, False)])
@pytest.mark.parametrize("name", CLASSES)
def test_classes(name, classes, binary, ties):
    answers, own = answers_of(classes, binary=binary, ties=ties)
    expected = [CLASSES[name](y, probabilities(outputs)) for y, outputs in own]
    np.testing.assert_allclose(values(name, answers), expected, rtol=1e-9)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_in_the_targets_own_units(name):
    answers, own = answers_of(None, mean=554.0, deviation=66.0)
    expected = [NUMBERS[name](554 + 66 * y, 554 + 66 * out[:, 0]) for y, out in own]
    np.testing.assert_allclose(values(name, answers), expected, rtol=1e-9)


@pytest.mark.parametrize("name", [*CLASSES, *NUMBERS])
def test_an_example_that_counts_twice_is_there_twice(name):
    answers, own = answers_of(3 if name in CLASSES else None, ties=True)
    times = np.random.default_rng(1).integers(0, 3, (CLIENTS, MOST))
    times[:, :3] = 1
    weights = answers.mask * torch.from_numpy(times)
    expected = []
    for i, (y, out) in enumerate(own):
        rows = np.repeat(np.arange(len(y)), times[i, : len(y)])
        if name in CLASSES:
            expected.append(CLASSES[name](y[rows], probabilities(out[rows])))
        else:
            expected.append(NUMBERS[name](y[rows], out[rows, 0]))
    np.testing.assert_allclose(values(name, answers, weights[:, None]), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "f1", "log_loss", "rmse", "r2"])
def test_sums_of_all_clients_give_the_score_of_all_examples(name):
    answers, own = answers_of(3 if name in CLASSES else None)
    metric = METRICS[name]
    sums = metric.sums(answers, answers.mask[:, None])[:, 0].sum(0)
    y, out = (np.concatenate(part) for part in zip(*own, strict=True))
    expected = CLASSES[name](y, softmax(out, 1)) if name in CLASSES else NUMBERS[name](y, out[:, 0])
    assert float(metric.value(sums)) == pytest.approx(expected)


def test_what_is_not_defined_is_not_a_number():
    outputs, one = torch.zeros(2, 3, 2), torch.ones(2, 3, dtype=torch.long)
    mask = torch.tensor([[1.0, 1, 1], [0, 0, 0]], dtype=torch.float64)
    answers = Answers(outputs, one, mask, LOSSES["cross-entropy"], 2, torch.zeros(2, 2))
    assert np.isnan(values("auc", answers)).all()  # a single class has no order
    assert values("accuracy", answers)[0] == 0
    assert np.isnan(values("accuracy", answers)[1])


def test_metrics_are_refused_where_they_say_nothing():
    with pytest.raises(FedkinError, match="did you mean 'accuracy'"):
        get_metric("acuracy")
    with pytest.raises(FedkinError, match="choose from rmse, mae, r2, median_error"):
        check_metric(METRICS["auc"], LOSSES["squared-error"], None)
    with pytest.raises(FedkinError, match="needs probabilities"):
        check_metric(METRICS["brier"], LOSSES["hinge"], 3)
    check_metric(METRICS["auc"], LOSSES["hinge"], 3)
