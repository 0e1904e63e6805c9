"""Small problems for sub-models, among them one of six parameters that can be stepped by hand."""

import torch

from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.models import build
from tests.helpers import blobs, federation

RATES = (1.0, 0.5, 0.25)


def small_problem(model="mlp:8,6", **options):
    return Problem(build(model, (5,), 3), blobs(), **options)


# v -> c.relu(A x) with A of two units over two inputs, c over two units: 6 parameters


class SixParameters(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 2, bias=False)
        self.last = torch.nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 1.0]]))
            self.last.weight.copy_(torch.tensor([[1.0, -1.0]]))

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


X, Y = torch.tensor([[1.0, 1.0], [2.0, 1.0]]), torch.tensor([1.0, 3.0])


def six_parameter_federation(**columns):
    examples = Examples.of([(X[:1], Y[:1]), (X[1:], Y[1:])])
    data = ClientData(examples, examples, None, columns=columns)
    return federation(Problem(SixParameters(), data, batch_size=1, dtype=torch.float64))


def one_unit_step(a, c, x, y, lr):
    """One gradient step of (c*relu(a.x) - y)^2/2 for a single unit that is active."""
    out = a @ x
    slope = c * out - y
    return a - lr * slope * c * x, c - lr * slope * out
