"""
A new method
============

A method is one class: the server's part of a round, and the clients' steps as plain functions.
This one is FedAvg with a personal last layer: the body of the network is averaged, while every
client keeps its own output layer (FedPer, Arivazhagan et al., 2019).
"""

from dataclasses import dataclass

import torch

import fedkin
from fedkin.methods.base import LocalWork, State, sgd
from fedkin.models import build


@fedkin.register("fedper-example")
@dataclass
class FedPerExample(LocalWork):
    """FedAvg on the body; the last layer stays at the client."""

    def init(self, fed):
        return State(x=fed.initial_model(), body=body_of(fed.problem))

    def round(self, fed, s):
        sent = {"x": s.x, "body": s.body}
        mean = fed.mean(local, at=fed.sample(), shared=sent, lr=self.lr, **self.work)
        s.x = s.x + mean["dx"]

    def personal(self, fed, s):
        return fed.request(joined, shared={"x": s.x, "body": s.body})


def body_of(problem):
    """1 for every parameter that is averaged, 0 for the last layer's weights and biases."""
    mask = torch.ones(problem.size)
    mask[-sum(slot.size for slot in problem.layout.slots[-2:]) :] = 0
    return mask


def joined(client, x, body):
    """The shared body with the client's own last layer."""
    return {"model": body * x + (1 - body) * client.recall("own", x)}


def local(client, x, body, lr, **work):
    """Tensors have a row per client in front, so this line is the same for one and for all."""
    y = sgd(client, joined(client, x, body)["model"], lr, work)
    client.keep(own=y)
    return {"dx": body * (y - x)}


data = fedkin.load(fedkin.DataConfig(name="digits", alpha=0.1), seed=0)
problem = fedkin.Problem(build("mlp:64", data.input_shape, data.num_classes), data)
for method in (fedkin.methods.FedAvg(lr=0.1), FedPerExample(lr=0.1)):
    run = fedkin.train(problem, method, rounds=30, baseline=False)
    print(f"{method.name}: mean personal accuracy {run.accuracy:.1%}")
