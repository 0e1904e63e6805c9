"""What the optimisers of the unified objective share: settings, constants, coins and drift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Request
from fedkin.errors import FedkinError
from fedkin.methods.base import Chance, CountOrZero, Method, NotNegative, Positive, State
from fedkin.methods.own_objective import OwnObjective
from fedkin.methods.shared.objectives import Constants, Settings, constants, get_objective


@dataclass
class Unified(Method):
    """F(w, beta) = 1/M sum_m f_m(w, beta_m): a shared block w, an own block beta_m per client.

    `objective` is one of methods/shared/objectives.py; lam, relax (Lambda), alpha, shared_parts and
    own_parts are its settings. With `rescale` the objective sees w/sqrt(M). A client uses the
    model that the objective says, or, with `beta_only`, beta_m alone. F is recorded every
    `record_every` rounds (0: never).
    """

    objective: Annotated[str, Doc("what is minimised, one of methods/shared/objectives.py")] = "mx2"
    lam: Annotated[NotNegative, Doc("how strongly own models are drawn to the shared one")] = 1.0
    relax: Annotated[NotNegative, Doc("Lambda, the weight of the shared model's own loss")] = 1.0
    alpha: Annotated[NotNegative, Doc("share of w in APFL2's mix; step of MAML")] = 0.1
    rescale: Annotated[bool, Doc("whether objectives see w/sqrt(M)")] = True
    shared_parts: Annotated[str, Doc("shared parts of the model, as in 0.,2.weight or 0:10")] = ""
    own_parts: Annotated[str, Doc("own parts of the model, of objective residual")] = ""
    beta_only: Annotated[bool, Doc("whether clients use beta alone")] = False
    record_every: Annotated[CountOrZero, Doc("rounds between records of F, 0 for none")] = 0

    def __post_init__(self) -> None:
        get_objective(self.objective)

    def numbers(self, fed: Federation) -> dict[str, Any]:
        """The objective's settings."""
        names = ("lam", "relax", "alpha", "shared_parts", "own_parts")
        scale = fed.size**-0.5 if self.rescale else 1.0
        return {"scale": scale} | {name: getattr(self, name) for name in names}

    def settings(self, fed: Federation) -> dict[str, Any]:
        """The objective and its settings, as steps take them."""
        return {"objective": self.objective} | self.numbers(fed)

    def init(self, fed: Federation) -> State:
        """w that makes every model the initial one, and what turns w into a model (0: none)."""
        found = get_objective(self.objective)
        own = Settings(fed.problem.layout, **self.numbers(fed))
        if self.beta_only and not found.is_a_model("beta", own):
            raise FedkinError(f"with objective '{self.objective}' beta alone is not a model")
        w, _ = found.starts(own, fed.initial_model()[None])
        return State(w=w[0], model_scale=found.scale(own) if found.is_a_model("w", own) else 0.0)

    def advance(self, fed: Federation, s: State) -> None:
        """One communication round."""
        raise NotImplementedError

    def round(self, fed: Federation, s: State) -> None:
        self.advance(fed, s)
        if self.record_every and fed.round % self.record_every == 0:
            fed.record(objective=self.value(fed, s))

    def personal(self, fed: Federation, s: State) -> Request:
        return fed.request(
            used_model, shared={"w": s.w}, beta_only=self.beta_only, **self.settings(fed)
        )

    def global_model(self, s: State) -> Tensor | None:
        return s.model_scale * s.w if s.model_scale else None

    def value(self, fed: Federation, s: State) -> float:
        """F at the present w and beta; costs nothing, for figures."""
        request = fed.request(own_value, shared={"w": s.w}, **self.settings(fed))
        return float(fed.look(request)["value"].mean())


@dataclass
class Coordinate(Unified):
    """Optimisers that step w or all beta, by a coin that all clients share.

    p_w, the chance of w, follows from the constants mu, L_w, L_beta of F unless given; these
    follow from L' (`smooth`) and mu' (`convex`) of the clients' losses unless given; L' is
    estimated by the clients and mu' is the model's l2 unless given. A round is one
    communication: the stretch of beta steps before it, which a client does alone, is
    part of the same call.
    """

    p_w: Annotated[Chance | None, Doc("chance of a step on w")] = None
    smooth: Annotated[Positive | None, Doc("L', smoothness of a sample's loss")] = None
    convex: Annotated[NotNegative | None, Doc("mu', strong convexity of clients' losses")] = None
    mu: Annotated[Positive | None, Doc("strong convexity of F")] = None
    L_w: Annotated[NotNegative | None, Doc("smoothness of F in w")] = None
    L_beta: Annotated[NotNegative | None, Doc("smoothness of F in beta")] = None

    def init(self, fed: Federation) -> State:
        s = super().init(fed)
        known = self.constants(fed)
        s.mu, s.L_w, s.L_beta = known.mu, known.L_w, known.L_beta
        return s

    def constants(self, fed: Federation) -> Constants:
        """mu, L_w and L_beta of F: given, or from the clients' L' and mu'."""
        if self.mu is not None and self.L_w is not None and self.L_beta is not None:
            return Constants(self.mu, self.L_w, self.L_beta)
        smooth = self.smooth
        if smooth is None:
            smooth = float(fed.map(smoothness)["L"].max()) or 1.0
        convex = fed.problem.l2 if self.convex is None else self.convex
        own = Settings(fed.problem.layout, **self.numbers(fed))
        found = constants(self.objective, own, fed.size, smooth, convex)
        L_w = found.L_w if self.L_w is None else self.L_w
        L_beta = found.L_beta if self.L_beta is None else self.L_beta
        # where F is not strongly convex, an error of 1/n is as good as the data allow
        mu = found.mu or (L_w + L_beta) / float(fed.samples.double().mean())
        return Constants(mu if self.mu is None else self.mu, L_w, L_beta)

    def chance(self, s: State, power: float) -> float:
        """p_w: given, or L_w^power in proportion to L_beta^power."""
        if self.p_w is not None:
            return self.p_w
        p: float = s.L_w**power / (s.L_w**power + s.L_beta**power)
        if p == 0:
            raise FedkinError(
                f"objective '{self.objective}' shares nothing, so no round would ever end: "
                "use lsgd, or give p_w, the chance of ending one"
            )
        return p


def step_sizes(s: State, p_w: float, clients: int, eta: float | None = None) -> dict[str, Any]:
    """eta = 1/(4*Lscr), Lscr = 2*max(L_w/p_w, L_beta/p_beta), and beta's 1/(M*p_beta)."""
    p_beta = 1 - p_w
    worst = 2 * max(s.L_w / p_w, s.L_beta / p_beta if s.L_beta and p_beta else 0.0)
    return {"eta": eta or 1 / (4 * worst), "weight": 1 / (clients * p_beta) if p_beta else 0.0}


TH2 = 0.5


def snapshot_chance(fed: Federation, p_w: float) -> float:
    """rho = p_w*batch/n, n the mean number of samples: snapshots then cost as much as steps."""
    return p_w * min(1.0, fed.problem.batch_size / float(fed.samples.double().mean()))


def th1(eta: float, mu: float, rho: float) -> float:
    """ASVRCD's share of z: min(1/2, sqrt(eta*mu*max(1/2, th2/rho)))."""
    return min(0.5, sqrt(eta * mu * max(0.5, TH2 / rho)))


def momentum(eta: float, mu: float, rho: float, longest: float = inf) -> dict[str, Any]:
    """How z moves: gamma = 1/max(2*mu, 4*th1/eta), but no longer than that; nu = 1 - gamma*mu."""
    gamma = min(longest, 1 / max(2 * mu, 4 * th1(eta, mu, rho) / eta))
    return {"gamma": gamma, "nu": 1 - gamma * mu}


def drift(steps: int, still: Callable[..., tuple[Any, ...]], *rows: Tensor) -> list[Tensor]:
    """What `steps` iterations that do not touch w's gradient make of w's vectors.

    `still` is one of them, linear in its arguments: so its effect is a small matrix, and that
    of many of them a power of it.
    """
    if steps == 0:
        return list(rows)
    matrix = np.stack(still(*np.eye(len(rows))))  # NumPy: ten times as fast on so little
    power = torch.from_numpy(np.linalg.matrix_power(matrix, steps))
    return [row.clone() for row in power.to(rows[0]) @ torch.stack(rows)]


# steps -----------------------------------------------------------------------------------


def smoothness(client: Client) -> dict[str, Tensor]:
    return {"L": client.smoothness()}


def used_model(client: Client, w: Tensor, beta_only: bool, **settings: Any) -> dict[str, Tensor]:
    f = OwnObjective(client, **settings)
    beta = client.recall("beta", f.start)
    return {"model": beta if beta_only else f.model(w, beta)}


def own_value(client: Client, w: Tensor, **settings: Any) -> dict[str, Tensor]:
    f = OwnObjective(client, **settings)
    return {"value": f.value(w, client.recall("beta", f.start))}
