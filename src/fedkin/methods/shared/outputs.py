"""Which of a run's models is its result: the last, their mean, or one of them at random.

The sub-model algorithms end with an output step where their analysis needs one: bounds that
hold on average over rounds hold for the model of a random round, and on convex losses for the
mean. What is used in practice, and here unless told otherwise, is the last. That these two are
the output steps, with equal chances and weights, is our reading of what such bounds need, not a
line of the paper.
"""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor
from typing_extensions import Doc

from fedkin.core.federation import Federation
from fedkin.methods.base import State

Output = Annotated[
    Literal["last", "mean", "random"],
    Doc("the model a run ends with: the last x, the mean of x over rounds, or x of a random round"),
]


def note_output(fed: Federation, s: State, output: str) -> None:
    """After a round: s.out <- the mean of all x so far, or one of them, each as likely."""
    if output == "last":
        return
    s.seen = getattr(s, "seen", 0) + 1
    if s.seen == 1:
        s.out = s.x.clone()
    elif output == "mean":
        s.out = s.out + (s.x - s.out) / s.seen
    elif fed.random("output").random() < 1 / s.seen:
        s.out = s.x.clone()


def output_of(s: State) -> Tensor:
    """The result so far."""
    found: Tensor = getattr(s, "out", s.x)
    return found
