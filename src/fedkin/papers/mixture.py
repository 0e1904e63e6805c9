"""How far a run's models are from the optimum of the mixture objective, whatever the method.

F(w, beta) = 1/M sum_m f_m(beta_m) + lam/(2M) sum_m |beta_m - w|^2, with beta_m the personal and
w the global models: what MX2, pFedMe and L2SGD+ minimise.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.engines import Embedded
from fedkin.papers.measures import Measure
from fedkin.runs.config import make_config, read_config
from fedkin.runs.groups import Records
from fedkin.runs.models import load_model
from fedkin.tensors import read_tensors

Vector = NDArray[np.float64]


def loss_and_slope(client: Client, v: Tensor) -> dict[str, Tensor]:
    return {"loss": client.full_loss(v), "slope": client.full_grad(v)}


def value_and_slope(problem: Problem, betas: Tensor, w: Tensor, lam: float) -> tuple[float, Tensor]:
    """F, and its gradient by the betas."""
    fed = Federation(problem, Embedded(problem, "stacked"))
    found = fed.look(fed.request(loss_and_slope, each={"v": betas}))
    apart = betas - w
    value = found["loss"].mean() + lam / 2 * apart.square().sum(1).mean()
    return float(value), (found["slope"] + lam * apart) / len(betas)


def optimum(problem: Problem, lam: float) -> float:
    """The smallest F, by L-BFGS over the betas; the best w is their mean."""
    shape = (problem.num_clients, problem.size)

    def both(flat: Vector) -> tuple[float, Vector]:
        betas = torch.from_numpy(flat).view(shape)
        value, slope = value_and_slope(problem, betas, betas.mean(0), lam)
        return value, slope.flatten().numpy()

    # steep enough to the last digits: the inputs of the synthetic data are much alike
    exact = {"maxiter": 20_000, "maxfun": 20_000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-9}
    found = minimize(both, np.zeros(prod(shape)), jac=True, method="L-BFGS-B", options=exact)
    return float(found.fun)


@lru_cache(maxsize=256)
def _known(data: str, model: str, seed: int, lam: float) -> tuple[float, float]:
    """F with all models zero, and at its optimum; runs on the same clients share them."""
    problem = _problem(data, model, seed)
    zero = torch.zeros(problem.num_clients, problem.size, dtype=torch.float64)
    return value_and_slope(problem, zero, zero[0], lam)[0], optimum(problem, lam)


def _problem(data: str, model: str, seed: int) -> Problem:
    """In double precision."""
    exact = {**json.loads(model), "dtype": "float64"}
    clients = json.loads(data)
    config = make_config({"method": "local", "seed": seed, "data": clients, "model": exact})
    return config.make_problem(config.make_data())


def _gap(run: Records) -> float | None:
    folder = run.path / "models"
    config = read_config(run.path / "config.toml")
    if not (folder / "global.safetensors").is_file() or "lam" not in config.options:
        return None
    lam, clients = float(config.options["lam"]), config.data.model_dump_json(exclude_none=True)
    # only the clients and their losses matter, not how minibatches are drawn
    names = ("name", "loss", "l2")
    model = json.dumps({name: getattr(config.model, name) for name in names})
    problem = _problem(clients, model, config.seed)
    own = config.make_problem(config.make_data())  # models are of its precision
    betas = torch.stack(
        [load_model(folder, own, i, name)[1] for i, name in enumerate(own.data.names)]
    ).double()
    named = read_tensors(folder / "global.safetensors")
    w = problem.layout.join({name: value[None] for name, value in named.items()})[0].double()
    first, best = _known(clients, model, config.seed, lam)
    return (value_and_slope(problem, betas, w, lam)[0] - best) / (first - best)


GAP = Measure(
    "gap", "F above its optimum, as a share of F at zero above it", _gap, ".2e", once=True
)
