"""One or two that stand out are named; sites that merely differ are not."""

from __future__ import annotations

import pytest
import torch

from fedkin.engines.flower.plausible import outliers
from fedkin.engines.wire import Message


def answer(norm: float = 1.0, gradients: int = 10, samples: int = 100) -> Message:
    row = torch.zeros(1, 4)
    row[0, 0] = norm
    return {"dx": row}, {"gradients": gradients, "samples": samples, "good": True}


def found(*answers: Message, sizes: tuple[int, ...] = ()) -> set[int]:
    return set(outliers(dict(enumerate(answers)), sizes or (50,) * len(answers)))


def test_liars_are_named_also_two_of_five():
    honest = answer(0.5), answer(2.0), answer(0.1)
    assert found(*honest, answer(1e6)) == {3}
    assert found(*honest, answer(1e6), answer(1e6)) == {3, 4}
    assert found(*honest, answer(gradients=10**6)) == {3}
    assert found(*honest, answer(samples=10**6)) == {3}


@pytest.mark.parametrize("quiet", [0.0, 1e-9])
def test_sites_that_differ_are_left_alone(quiet: float):
    assert not found(answer(0.01), answer(0.3), answer(1.0), answer(5.0))
    assert not found(answer(quiet), answer(quiet), answer(1.0), answer(1.0))  # half are done
    assert not found(answer(), answer(), answer(samples=10**5, gradients=10**4),
                     sizes=(50, 50, 50_000))  # fmt: skip


def test_two_cannot_tell_which_of_them_is_wrong():
    assert not found(answer(1.0), answer(1e6))
    assert not found(answer(float("nan")), answer(float("inf")), answer(1.0))
