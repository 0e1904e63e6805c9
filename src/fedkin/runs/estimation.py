"""How far a run's models are from those that the data's labels were drawn from."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests, parts
from fedkin.core.problem import Problem
from fedkin.core.steps import find_step, offer_steps, step_name

offer_steps(__name__)


def true_models(problem: Problem) -> tuple[Tensor, Tensor | None] | None:
    """beta* [M, size] and w* [size] in the model's layout; None where they are not known, or the
    model is not linear with one output. Where it has a bias, the true one is 0."""
    truth, slots = problem.data.truth, problem.layout.slots
    if truth is None or slots[0].shape != (1, truth.betas.shape[1]):
        return None
    if any(slot.shape != (1,) for slot in slots[1:]):
        return None
    like = problem.initial
    betas = torch.zeros(len(truth.betas), problem.size).to(like)
    betas[:, : truth.betas.shape[1]] = truth.betas.to(like)
    if truth.w is None:
        return betas, None
    w = torch.zeros_like(like[0])
    w[: len(truth.w)] = truth.w.to(like)
    return betas, w


def distance(client: Client, make: str, truth: Tensor, **arguments: Any) -> dict[str, Tensor]:
    """Square of a client's distance to its true model; its own it gets by the step `make`."""
    model = find_step(make)(client, **arguments)["model"]
    return {"square": (model - truth).square().sum(1, keepdim=True)}


def estimation_errors(fed: Federation, asked: Requests, model: Tensor | None) -> dict[str, float]:
    """Where the truth is known: sqrt(mean_m |beta_m - beta*_m|^2) of personal models, |w - w*| of
    the global one, and the root of their squares' sum."""
    known = true_models(fed.problem)
    if known is None:
        return {}
    betas, w = known
    squares = []
    for request in parts(asked):
        hyper = {**request.hyper, "make": step_name(request.step)}
        each = {**request.each, "truth": betas[request.at]}
        found = fed.look(replace(request, step=distance, hyper=hyper, each=each))
        squares.append(found["square"])
    total = float(torch.cat(squares).mean())
    errors = {"personal_error": sqrt(total)}
    if model is not None and w is not None:
        apart = float((model - w).square().sum())
        errors["global_error"], total = sqrt(apart), total + apart
    return errors | {"estimation_error": sqrt(total)}
