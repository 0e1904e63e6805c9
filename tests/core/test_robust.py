"""Means that one broken or hostile client cannot carry away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from fedkin.core.blocks import Block
from fedkin.core.federation import Federation, Request
from fedkin.core.problem import Problem
from fedkin.core.robust import Aggregate
from fedkin.data import DataConfig, load
from fedkin.engines import Embedded
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg
from fedkin.models import build
from tests.helpers import run


@pytest.mark.parametrize("count", [1, 2, 5, 10, 11])
def test_medians_and_trimmed_means_are_those_of_numpy_and_scipy(count: int) -> None:
    rows = torch.randn(count, 7, generator=torch.Generator().manual_seed(count)).double()
    median, trimmed = Aggregate.parse("median"), Aggregate.parse("trimmed:0.2")
    assert median is not None
    assert trimmed is not None
    np.testing.assert_allclose(median.of(rows), np.median(rows.numpy(), 0))
    if count % 5 == 0:  # scipy rounds the number it cuts down, we round it up
        np.testing.assert_allclose(trimmed.of(rows), trim_mean(rows.numpy(), 0.2, 0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("medain", "did you mean 'median'"),
        ("median:3", "takes no number"),
        ("trimmed", "above 0 and below 0.5, as in trimmed:0.1"),
        ("trimmed:0.5", "above 0 and below 0.5"),
        ("norm-bound:-1", "above 0, as in norm-bound:1"),
        ("norm-bound:nan", "above 0"),
    ],
)
def test_what_is_no_aggregate_is_refused(text: str, words: str) -> None:
    with pytest.raises(FedkinError, match=words):
        Aggregate.parse(text)


class OneHostile(Embedded):
    """An engine whose first client sends a million times its answer, or something larger still."""

    factor = 1e6

    def run(self, request: Request) -> Iterator[Block]:
        for block in super().run(request):
            factor = torch.where(request.at[block.positions] == 0, self.factor, 1.0)[:, None]
            hostile = request.remember and "dx" in block.reply
            yield replace(block, reply={"dx": block.reply["dx"] * factor}) if hostile else block


class OneHuge(OneHostile):
    factor = 1e30


@cache
def problem(flipped: bool = False) -> Problem:
    """Ten clients with digits; the labels of the first may be turned round."""
    data = load(DataConfig(name="digits", num_clients=10, partition="iid"), 0)
    if flipped:
        y, own = data.train.y.clone(), int(data.train.sizes[0])
        y[:own] = 9 - y[:own]
        data = replace(data, train=replace(data.train, y=y))
    return Problem(build("logistic", data.input_shape, 10, seed=1), data, batch_size=10)


@cache
def accuracy(aggregate: str, flipped: bool, engine: type[Embedded]) -> float:
    """Of the shared model on the test data of the nine that are honest."""
    of = problem(flipped)
    fed = Federation(of, engine(of, "stacked"), aggregate=Aggregate.parse(aggregate))
    model = of.module(run(FedAvg(lr=0.1, local_steps=10), fed, 10).x)
    test, first = of.data.test, int(of.data.test.offsets[1])
    right = model(test.x[first:].float()).argmax(1) == test.y[first:]
    return float(right.double().mean())


robust = pytest.mark.parametrize("aggregate", ["median", "trimmed:0.1", "norm-bound:0.3"])


@robust
@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("engine", [OneHostile, OneHuge])
def test_a_client_that_sends_a_million_times_its_update_does_no_harm(
    aggregate: str, flipped: bool, engine: type[Embedded]
) -> None:
    clean = accuracy("mean", False, Embedded)
    assert clean > 0.85
    assert accuracy("mean", flipped, engine) < clean - 0.2
    assert accuracy(aggregate, flipped, engine) > clean - 0.05


@robust
def test_a_client_with_flipped_labels_does_little_harm(aggregate: str) -> None:
    clean = accuracy("mean", False, Embedded)
    assert accuracy("mean", True, Embedded) < clean
    assert accuracy(aggregate, True, Embedded) > clean - 0.05


def test_weights_and_medians_contradict_each_other() -> None:
    fed = Federation(problem(), Embedded(problem()), aggregate=Aggregate.parse("median"))
    with pytest.raises(FedkinError, match="counts every client once"):
        run(FedAvg(weighted=True), fed, 1)


def test_a_median_without_answers_leaves_the_model_as_it_is() -> None:
    of = problem()
    fed = Federation(of, Embedded(of, "stacked"), sampling="poisson", fraction=1e-9,
                     aggregate=Aggregate.parse("median"))  # fmt: skip
    assert torch.equal(run(FedAvg(), fed, 2).x, of.initial[0])
