"""Whether gradient steps are longer than a model and its data bear where training begins.

Along the steepest direction of the loss, of curvature s, a step of size lr goes beyond the bottom,
and ends higher than it began, where lr > 2/s. Networks with hidden layers then learn little of
what they could; linear models, whose gradients stay bounded, bear it (measured in
docs/guides/step-sizes.md).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.core.kernels import ModelError
from fedkin.core.problem import Problem
from fedkin.core.steps import offer_steps
from fedkin.engines.embedded import Embedded
from fedkin.methods.base import Method, Remark
from fedkin.runs.settings import Settings

offer_steps(__name__)

# the clients whose loss is looked at, from how many minibatches each, and how often directions turn
CLIENTS, BATCHES, TURNS = 3, 3, 8
# the share of a run's gradients that a look may cost at most; a product with the Hessian costs 3
SHARE = 0.03
COST = 3 * CLIENTS * BATCHES * TURNS


def sharpness(client: Client, x: Tensor) -> dict[str, Tensor]:
    """The largest curvature of the client's loss at x, by power iteration from its gradient."""
    batches = [client.next_batch() for _ in range(BATCHES)]
    turned = torch.stack([client.grad(x, batch) for batch in batches]).mean(0)
    for _ in range(TURNS):
        u = torch.nn.functional.normalize(turned, dim=1)
        turned = torch.stack([client.hvp(x, u, batch) for batch in batches]).mean(0)
    return {"curvature": (u * turned).sum(1, keepdim=True)}


def bearable(problem: Problem, seed: int) -> float | None:
    """2/s at the first model, the median over some clients; None where it cannot be told."""
    # one client after the other where stacking would only take memory
    engine = Embedded(problem, "stacked" if problem.has_native() else "autograd")
    fed = Federation(problem, engine, seed)
    at = torch.linspace(0, fed.size - 1, min(CLIENTS, fed.size)).long()
    try:
        found = fed.look(fed.request(sharpness, at, shared={"x": fed.initial_model()}))
    except ModelError:  # some layers have no second derivatives
        return None
    s = float(found["curvature"].median())
    return 2 / s if s > 0 else None


def step_remarks(problem: Problem, method: Method, settings: Settings) -> tuple[Remark, ...]:
    """A sentence if the method's gradient steps are too long, in runs that cost many times a look.

    Nothing is said of steps that an optimiser scales.
    """
    short = SHARE * _gradients(problem, method, settings) < COST
    layers = sum(len(slot.shape) > 1 for slot in problem.layout.slots)
    if method.gradient_step is None or short or layers < 2:
        return ()
    name, size = method.gradient_step
    most = bearable(problem, settings.seed)
    if most is None or size <= most:
        return ()
    said = (
        f"{name} = {size:g} is too long a step for this model on these data, which at the start "
        f"bear about {most:.1g} (2 over the loss's largest curvature): it may learn little of what "
        f"it could; try {name} = {most / 2:.1g}"
    )
    return (Remark(said, unstable=True),)


def _gradients(problem: Problem, method: Method, settings: Settings) -> float:
    """How many gradients clients take in the run, nearly."""
    asked = Federation.count_asked(settings.fraction, problem.num_clients)
    return settings.rounds * asked * float(getattr(method, "local_steps", 1))
