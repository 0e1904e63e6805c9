"""Whether steps are too long where training begins, against eigenvalues by NumPy."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin.core.problem import Problem
from fedkin.data import ClientData, Examples
from fedkin.errors import FedkinWarning
from fedkin.methods import Ditto, FedAvg, PFedMe
from fedkin.models import build
from fedkin.runs.settings import Settings
from fedkin.runs.step_size import bearable, step_remarks
from tests.helpers import least_squares


def bright_digits(times: float) -> ClientData:
    """Digits whose pixels go up to this number."""
    data = fedkin.load(fedkin.DataConfig(name="digits", num_clients=4), seed=0)
    train, test = (
        Examples.of([(part[i][0] * times, part[i][1]) for i in range(4)])
        for part in (data.train, data.test)
    )
    return ClientData(train, test, data.num_classes)


def perceptron(times: float) -> Problem:
    data = bright_digits(times)
    return Problem(build("mlp:32", data.input_shape, 10), data, batch_size=20)


LONG = Settings(rounds=600, seed=0)


def test_on_least_squares_it_is_two_over_the_largest_eigenvalue():
    problem = least_squares(clients=3, samples=40, dimension=3)
    found = []
    for i in range(3):
        x = problem.data.train[i][0].numpy()
        x = np.hstack([x, np.ones((len(x), 1))])  # the bias
        found.append(2 / np.linalg.eigvalsh(x.T @ x / len(x)).max())  # of half the mean square
    # power iteration comes to it from above
    assert np.median(found) <= bearable(problem, seed=0) <= 1.1 * np.median(found)


@pytest.mark.parametrize("method", [FedAvg(lr=0.1), Ditto(lr=0.1), PFedMe(inner_lr=0.1)])
def test_steps_that_are_too_long_are_told_by_the_name_of_their_setting(method):
    (remark,) = step_remarks(perceptron(20.0), method, LONG)
    name = "inner_lr" if isinstance(method, PFedMe) else "lr"
    assert remark.sentence.startswith(f"{name} = 0.1 is too long a step")
    assert remark.unstable
    assert step_remarks(perceptron(1.0), method, LONG) == ()


def test_nothing_is_said_of_what_an_optimiser_scales_of_short_runs_and_of_linear_models():
    problem = perceptron(20.0)
    assert step_remarks(problem, FedAvg(lr=0.1, optimiser="adam"), LONG) == ()
    assert step_remarks(problem, FedAvg(lr=0.1), Settings(rounds=2)) == ()
    linear = Problem(build("linear", problem.data.input_shape, 10), problem.data)
    assert step_remarks(linear, FedAvg(lr=0.1), LONG) == ()


class Prototypes(nn.Module):
    """Classes by their distance, whose second derivatives torch does not have."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.embed, self.of_classes = nn.Linear(inputs, 8), nn.Parameter(torch.eye(10, 8))

    def forward(self, x):
        return -torch.cdist(self.embed(x.flatten(1)), self.of_classes)


def test_models_that_have_no_second_derivatives_are_let_pass():
    data = bright_digits(20.0)
    problem = Problem(Prototypes(int(np.prod(data.input_shape))), data)
    assert bearable(problem, seed=0) is None
    assert step_remarks(problem, FedAvg(lr=0.1), LONG) == ()


def test_a_run_says_it_before_it_trains_and_is_the_same_run():
    told = []
    for rounds in (600, 1):  # long enough for a look, and not
        problem = perceptron(20.0)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            trainer = fedkin.runs.training.Trainer(
                problem, FedAvg(lr=0.1), Settings(rounds=rounds, baseline=False)
            )
            trainer.step()
        told.append(any("too long a step" in str(w.message) for w in seen
                        if issubclass(w.category, FedkinWarning)))  # fmt: skip
        contender = trainer.contenders["method"]
        told.append(contender.state.x.clone())
        told.append(contender.fed.accounts.table.clone())
    long, first, counted, short, again, as_many = told
    assert (long, short) == (True, False)
    assert torch.equal(first, again)
    assert torch.equal(counted, as_many)


def test_shorter_steps_do_learn_more_there():
    problem = perceptron(20.0)
    most = bearable(problem, seed=0)
    assert most is not None
    assert most < 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        long, short = (
            fedkin.train(problem, FedAvg(lr=lr), rounds=20, eval_every=20, baseline=False).accuracy
            for lr in (0.1, most / 2)
        )
    assert short > long + 0.1
