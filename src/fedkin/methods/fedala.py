"""FedALA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests
from fedkin.methods.base import Averaging, CountOrZero, Positive, State, sgd
from fedkin.methods.fedper import Head
from fedkin.methods.registry import register
from fedkin.methods.shared.parts import last, place


@register("fedala")
@dataclass
class FedALA(Averaging):
    """FedALA (Zhang et al., 2023): FedAvg whose clients learn how much of x to take over.

    Client i, with its model v_i of last time, starts from a_i = v_i + W_i*(x - v_i), element by
    element. W_i is 1 below the head; in the head it begins at 1 and takes `mix_steps` steps
    W_i <- clip(W_i - mix_lr*g_i(a_i)*(x - v_i), 0, 1) on minibatches (`first_mix_steps` the first
    time). Then y <- y - lr*g_i(y), K times from y = a_i; the client keeps v_i = y and W_i;
    x <- mean_S y. Personal model: a_i with the present x. The head is the last layer, or `head`.
    Lost clients are left out of the mean and keep v_i and W_i; if nobody answers, x stays.
    """

    needs: ClassVar[str] = "layers"

    head: Head = ""
    mix_lr: Annotated[Positive, Doc("size of the steps on W_i")] = 1.0
    mix_steps: Annotated[CountOrZero, Doc("steps on W_i in a round")] = 5
    first_mix_steps: Annotated[CountOrZero, Doc("steps on W_i when it is first learnt")] = 40

    def parts(self, fed: Federation) -> str:
        return self.head or last(fed.problem.layout, f"method '{self.name}'", "head = '0:10'")

    def round(self, fed: Federation, s: State) -> None:
        mean = fed.mean(
            mix_and_train, at=fed.sample(), shared={"x": s.x}, weights=self.weights(fed),
            parts=self.parts(fed), lr=self.lr, mix_lr=self.mix_lr, mix_steps=self.mix_steps,
            first_mix_steps=self.first_mix_steps, **self.work,
        )  # fmt: skip
        self.advance(s, mean["dx"], mean.answered)

    def personal(self, fed: Federation, s: State) -> Requests:
        return fed.request(mixed, shared={"x": s.x}, parts=self.parts(fed))


class Mix:
    """a_i = v_i + W_i*(x - v_i); W_i is kept for the head alone, and 1 elsewhere."""

    def __init__(self, client: Client, x: Tensor, parts: str) -> None:
        self.head, self.x, self.v = place(client.problem.layout, parts), x, client.recall("v", x)
        whole = torch.ones_like(self.head.pick(client.initial))
        self.weights = client.recall("mix", whole)

    def model(self, weights: Tensor) -> Tensor:
        model: Tensor = self.x + self.head((1 - weights) * self.head.pick(self.v - self.x))
        return model


def mix_and_train(
    client: Client, x: Tensor, parts: str, lr: Any, mix_lr: Any, mix_steps: Any,
    first_mix_steps: Any, **work: Any,
) -> dict[str, Tensor]:  # fmt: skip
    mix, zero = Mix(client, x, parts), torch.zeros_like(client.initial[:, :1])
    seen = client.recall("rounds", zero)  # rounds in which the client took part

    def step(w: Tensor) -> Tensor:
        slope = mix.head.pick(client.grad(mix.model(w)) * (x - mix.v))
        return torch.clamp(w - mix_lr * slope, 0, 1)

    # in its first round a client has no model yet; in the second it learns W_i for longer
    times = torch.where(seen > 1, mix_steps + zero, first_mix_steps + zero) * (seen > 0)
    w = client.repeat(times, step, mix.weights.expand(len(client), -1))
    y = sgd(client, mix.model(w), lr, work)
    client.keep(v=y, mix=w, rounds=seen + 1)
    return {"dx": y - x}


def mixed(client: Client, x: Tensor, parts: str) -> dict[str, Tensor]:
    mix = Mix(client, x, parts)
    return {"model": mix.model(mix.weights)}
