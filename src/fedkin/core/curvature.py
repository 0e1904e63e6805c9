"""Curvature of generalised linear models: one linear layer with one output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedkin.core.client import Client
from fedkin.core.problem import Problem

NEWTON_STEPS = 20


def is_generalised_linear(problem: Problem) -> bool:
    """Whether the model is linear with one output, and its loss's second derivative known."""
    layers = [part for part in problem.spec.module.modules() if not list(part.children())]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if problem.spec.loss.bend is None or len(linear) != 1 or linear[0].out_features != 1:
        return False
    others = all(isinstance(layer, nn.Linear | nn.Flatten | nn.Identity) for layer in layers)
    return others and problem.size == linear[0].in_features + (linear[0].bias is not None)


def hessian(client: Client, v: Tensor) -> Tensor:
    """The Hessian of f_i at v over all training data, [B, d, d] in double precision."""
    loss, d = client.problem.spec.loss, client.problem.size
    assert loss.bend is not None
    total = torch.zeros(len(client), d, d, dtype=torch.float64, device=v.device)
    for batch, mask in client.stretches():
        outputs = client.outputs(v, batch.x)
        bend = loss.bend(outputs.flatten(0, 1), batch.y.flatten(0, 1)).view(mask.shape)
        x = batch.x.flatten(2).double()
        x = torch.cat([x, torch.ones_like(x[..., :1])], 2)[..., :d]  # 1 is what a bias sees
        total += x.mT @ ((bend * mask).double()[..., None] * x)
    return total / client.n[..., None] + client.problem.l2 * torch.eye(d).to(total)


def own_fit(client: Client) -> Tensor:
    """The client's own best model, by damped Newton steps; [B, d].

    A step is shortened so that no output changes by much more than 1: with classes that a
    plane separates there is no best model, and this one then has outputs of about NEWTON_STEPS.
    """
    v = client.initial.expand(len(client), -1)
    identity = torch.eye(v.shape[1], dtype=torch.float64, device=v.device)
    for _ in range(NEWTON_STEPS):
        curved = hessian(client, v)
        little = 1e-9 * curved.diagonal(dim1=1, dim2=2).mean(1) + 1e-30
        slope = client.full_grad(v).double()
        step = torch.linalg.solve(curved + little[:, None, None] * identity, slope).to(v)
        largest = torch.full_like(v[:, :1], 1e-12)
        for batch, mask in client.stretches():
            moves = client.outputs(step, batch.x).flatten(2)[..., 0].abs() * mask
            largest = torch.maximum(largest, moves.amax(1, keepdim=True))
        v = v - torch.log1p(largest) / largest * step
    return v
