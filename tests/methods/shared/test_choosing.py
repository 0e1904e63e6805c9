"""Choices from few examples, against the textbook's formulas one client at a time."""

import math
from statistics import NormalDist

import pytest
import torch
from sklearn.metrics import log_loss

from fedkin.core.losses import get_loss
from fedkin.core.metrics import Answers
from fedkin.methods.shared import choosing


def losses(clients=15, ways=3, apart=0.0, noise=0.3, seed=0, gain=-0.2):
    """Held-out losses; way 1 is better by `gain`, and by N(0, apart) at each client."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(clients):
        n = 4 + i
        table = 1 + noise * torch.randn(n, ways, generator=g, dtype=torch.float64)
        table[:, 1] += gain + apart * torch.randn(1, generator=g, dtype=torch.float64)
        rows.append(table)
    return rows, choosing.Losses(
        torch.tensor([len(t) for t in rows]).double(), torch.stack([t.sum(0) for t in rows]),
        torch.stack([t.T @ t for t in rows]),
    )  # fmt: skip


@pytest.mark.parametrize("apart", [0.0, 0.5])
def test_expectations_are_those_of_dersimonian_and_laird(apart):
    rows, found = losses(apart=apart)
    mean, deviation = choosing.compare(found, 0)
    d = [float((t[:, 1] - t[:, 0]).mean()) for t in rows]
    own = [(t[:, 1] - t[:, 0]).var().item() for t in rows]
    degrees = sum(len(t) - 1 for t in rows)
    pooled = sum(v * (len(t) - 1) for v, t in zip(own, rows, strict=True)) / degrees
    error = [pooled / len(t) for t in rows]
    w = [1 / e for e in error]
    centre = sum(a * b for a, b in zip(w, d, strict=True)) / sum(w)
    q = sum(a * (b - centre) ** 2 for a, b in zip(w, d, strict=True))
    tau = max(0.0, (q - (len(d) - 1)) / (sum(w) - sum(a * a for a in w) / sum(w)))
    w = [1 / (e + tau) for e in error]
    mu = sum(a * b for a, b in zip(w, d, strict=True)) / sum(w)
    assert (tau > 0) == (apart > 0)
    for i, e in enumerate(error):
        pull = e / (e + tau)
        assert float(mean[i, 1]) == pytest.approx(pull * mu + (1 - pull) * d[i])
        spread = pull * tau + pull**2 / sum(w)
        assert float(deviation[i, 1]) == pytest.approx(math.sqrt(spread))


def test_where_clients_differ_by_noise_alone_all_choose_what_is_best_for_all():
    _, found = losses(apart=0.0)
    way, sure = choosing.choose(found, alone=[0])
    assert (way == 1).all()
    assert (sure > 0.95).all()


def test_a_client_whose_own_examples_say_so_clearly_deviates():
    rows, _ = losses(clients=15, apart=0.0, noise=0.05)
    rows[-1][:, 1] += 3.0
    rows[-2][:, 1] += 3.0
    found = choosing.Losses(
        torch.tensor([len(t) for t in rows]).double(), torch.stack([t.sum(0) for t in rows]),
        torch.stack([t.T @ t for t in rows]),
    )  # fmt: skip
    way, _ = choosing.choose(found, alone=[0])
    assert (way[-2:] != 1).all()
    assert (way[:-2] == 1).all()


def test_nobody_leaves_what_is_best_for_all_who_is_less_than_95_percent_sure():
    _, found = losses(clients=40, ways=2, apart=0.3, gain=-0.1)
    way, _ = choosing.choose(found, alone=[0])
    mean, deviation = choosing.compare(found, 1)
    of_alone = zip(mean[:, 0].tolist(), deviation[:, 0].tolist(), strict=True)
    better = [NormalDist(0, d).cdf(-m) for m, d in of_alone]
    assert [w == 0 for w in way] == [p > 0.95 for p in better]
    assert any(0.5 < p < 0.95 for p in better)
    assert any(p > 0.95 for p in better)


def test_clients_that_were_not_heard_do_as_the_others():
    _, found = losses()
    found.count[3] = 0
    way, sure = choosing.choose(found, alone=[0])
    assert (way == 1).all()
    assert torch.isfinite(sure).all()


def test_a_way_that_would_be_best_next_time_is_seen_before_it_is_best():
    alone = [0.2, 0.18, 0.17]
    together = [0.5, 0.3, 0.1]  # .2 less each time: behind at the second, ahead at the third
    course = torch.tensor([alone, together]).T
    assert choosing.overtaken(course[:2])
    assert not choosing.overtaken(course)  # and what leads by then stays ahead
    assert not choosing.overtaken(course[:1])  # one time shows no course
    slow = torch.tensor([alone, [0.5, 0.49, 0.48]]).T
    assert not choosing.overtaken(slow[:2])


def said(outputs, targets, loss="cross-entropy"):
    """Answers of one client about all its examples."""
    mask = torch.ones(1, len(targets))
    scale = torch.tensor([[0.0, 1.0]])
    return Answers(outputs[None], targets[None], mask, get_loss(loss), 3, scale)


def test_losses_at_each_sharpness_are_those_of_probabilities_to_that_power():
    g = torch.Generator().manual_seed(0)
    outputs = torch.randn(20, 3, generator=g, dtype=torch.float64)
    targets = torch.randint(3, (20,), generator=g)
    found = choosing.losses_by_sharpness(said(outputs, targets))
    for times, row in zip(choosing.SHARPNESS, found[0], strict=True):
        power = outputs.softmax(1) ** times
        sure = (power / power.sum(1, keepdim=True)).numpy()
        assert float(row.mean()) == pytest.approx(log_loss(targets, sure, labels=[0, 1, 2]))


def test_a_loss_that_is_not_of_probabilities_is_judged_as_it_is():
    outputs, targets = torch.tensor([[2.0], [1.0]]), torch.tensor([1.0, 3.0])
    found = choosing.losses_by_sharpness(said(outputs, targets, "squared-error"))
    torch.testing.assert_close(found, torch.tensor([[[0.5, 2.0]]]).double())


def test_a_way_that_is_too_sure_of_itself_is_not_left_for_a_worse_one():
    """Both ways give probabilities that are right but for their sharpness; one knows more."""
    g = torch.Generator().manual_seed(1)
    rows = []
    for _ in range(30):
        truth = 2 * torch.randn(40, 3, generator=g, dtype=torch.float64)
        targets = torch.multinomial(truth.softmax(1), 1, generator=g)[:, 0]
        vague = truth + torch.randn(40, 3, generator=g, dtype=torch.float64)
        ways = [choosing.losses_by_sharpness(said(o, targets))[0] for o in (vague, 4 * truth)]
        rows.append(torch.cat(ways))
    found = choosing.Losses(
        torch.full((30,), 40.0).double(), torch.stack([t.sum(1) for t in rows]),
        torch.stack([t @ t.T for t in rows]),
    )  # fmt: skip
    at = [choosing.SHARPNESS.index(1.0) + len(choosing.SHARPNESS) * way for way in (0, 1)]
    assert found.means[at[1]] > found.means[at[0]]  # as it is, the one that knows more seems worse
    own = found.calibrated(2)
    assert (choosing.choose(own, alone=[0])[0] == 1).all()
    # the better one is judged at a quarter, which is the truth
    torch.testing.assert_close(own.means[1], found.means[4 + choosing.SHARPNESS.index(0.25)])
    torch.testing.assert_close(own.product[:, 1, 1], torch.stack([(t[7] ** 2).sum() for t in rows]))
