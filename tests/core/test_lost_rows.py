"""Rows that an engine does not bring back are missing, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedkin.core.blocks import Block
from fedkin.core.federation import Federation, Request
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.engines import Wire
from fedkin.methods import FedAvg
from fedkin.methods.base import use
from fedkin.runs.evaluation import score_model
from tests.helpers import blobs, least_squares, line, run


class Lossy:
    """An engine whose clients `gone` never answer."""

    def __init__(self, problem: Problem, gone: set[int]) -> None:
        self.wire, self.gone = Wire(problem), gone

    def run(self, request: Request) -> Iterator[Block]:
        for block in self.wire.run(request):
            if int(request.at[block.positions[0]]) not in self.gone:
                yield block


def test_lost_rows_are_zero_and_marked():
    problem = least_squares(clients=4)
    fed = Federation(problem, Lossy(problem, {1, 3}))
    model = torch.arange(3.0, dtype=torch.float64)
    replies = fed.map(use, shared={"model": model})
    assert replies.arrived.tolist() == [True, False, True, False]
    assert replies["model"][[0, 2]].equal(model.repeat(2, 1))
    assert replies["model"][[1, 3]].eq(0).all()
    assert fed.look(fed.request(use, shared={"model": model})).arrived.tolist() == [True, False] * 2


def test_a_mean_is_over_those_who_answered():
    problem = least_squares(clients=3)
    some = Problem(
        line(3),
        ClientData(*[Examples.of([problem.data.train[i] for i in (0, 2)])] * 2, None),
        batch_size=problem.batch_size,
        reshuffle=True,
        dtype=torch.float64,
    )
    lossy = run(FedAvg(lr=0.1), Federation(problem, Lossy(problem, {1})), 3)
    alone = run(FedAvg(lr=0.1), Federation(some, Wire(some)), 3)
    torch.testing.assert_close(lossy.x, alone.x)


def test_when_nobody_answers_the_model_stays_and_nothing_diverges():
    problem = least_squares(clients=2)
    fed = Federation(problem, Lossy(problem, {0, 1}))
    assert run(FedAvg(), fed, 2).x.equal(fed.initial_model())
    assert fed.accounts.total("bytes_up") == 0


def test_a_lost_client_has_no_score():
    problem = Problem(torch.nn.Linear(5, 3), blobs(clients=3))
    fed = Federation(problem, Lossy(problem, {2}))
    scores = score_model(fed, fed.initial_model())
    assert scores.examples.tolist() == [20, 20, 0]
    assert scores.accuracy.isnan().tolist() == [False, False, True]


def test_examples_elsewhere_have_sizes_but_no_rows():
    blank = torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)
    train = Examples.elsewhere(torch.tensor([30, 7]), *blank)
    data = ClientData(train, Examples.elsewhere(torch.tensor([3, 0]), *blank), 3)
    problem = Problem(torch.nn.Linear(5, 3), data)
    assert problem.train.sizes.tolist() == [30, 7]
    assert problem.num_clients == 2
    assert problem.size == 18
