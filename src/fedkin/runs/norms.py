"""Whole models where they are used: with what stays at clients and what their norms go by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Request
from fedkin.core.steps import find_step, offer_steps, step_name
from fedkin.errors import FedkinError
from fedkin.methods.base import use
from fedkin.methods.local import own_model

offer_steps(__name__)

# the argument of `complete` and of evaluation that has them
STATISTICS = "norm_statistics"


def settle(client: Client, make: str, **arguments: Any) -> dict[str, Tensor]:
    """The statistics of the client's training data in the model that the step `make` gives."""
    return {"statistics": client.statistics(find_step(make)(client, **arguments)["model"])}


def complete(
    client: Client, make: str, norm_statistics: Tensor | None = None, **arguments: Any
) -> dict[str, Tensor]:
    """The model that the step `make` gives, with all that stays at the client and its norms'
    statistics."""
    model = find_step(make)(client, **arguments)["model"]
    return {"model": client.complete(model, norm_statistics)}


def mean_statistics(fed: Federation, request: Request) -> Tensor:
    """The mean over clients, by their samples, of the norms' statistics in a request's models."""
    hyper = {**request.hyper, "make": step_name(request.step)}
    settling = replace(request, step=settle, hyper=hyper)
    if fed.sums_only:
        mean = fed.look_mean(settling, fed.samples)
        if not mean:
            raise FedkinError(
                "too few sites could be reached for the mean of their norms' statistics: let them "
                "join again and resume the run"
            )
        return mean["statistics"]
    found = fed.look(settling)
    rows = found["statistics"]
    weights = (fed.samples[found.at] * found.arrived).to(rows)
    return (weights / weights.sum().clamp_min(1)) @ rows


def by_norm(fed: Federation, request: Request) -> Request:
    """A request with the statistics that its models' norms go by, where those are averaged.

    Models of clients that train alone go by their own data: there are no others to learn from.
    """
    known = STATISTICS in request.each or request.step is own_model
    if fed.problem.norm != "averaged" or known:
        return request
    found = {STATISTICS: mean_statistics(fed, request)[None]}
    return replace(request, shared={**request.shared, **found})


def completed(fed: Federation, request: Request) -> Request:
    """The request for models with all that makes each client's module (`Problem.complete`)."""
    spec = fed.problem.variant(request.variant).spec
    if not spec.home.slots and not spec.statistics.slots:
        return request
    hyper = {**request.hyper, "make": step_name(request.step)}
    return replace(by_norm(fed, request), step=complete, hyper=hyper)


def completed_global(fed: Federation, model: Tensor) -> Tensor:
    """One model for all with the mean of all clients' statistics, as far as it has norms."""
    spec = fed.problem.spec
    if not spec.statistics.slots:
        return model
    home = fed.problem.initial_home[0]
    found = mean_statistics(fed, fed.request(use, shared={"model": model}))
    return torch.cat([model, home.to(model), found.to(model)])
