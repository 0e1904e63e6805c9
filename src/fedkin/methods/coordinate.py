"""What the optimisers that step one block at a time share: constants, coins and drift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.curvature import hessian, is_generalised_linear, own_fit
from fedkin.core.federation import Federation
from fedkin.errors import FedkinError
from fedkin.methods.base import Chance, NotNegative, Positive, Remark, State
from fedkin.methods.shared.objectives import Constants, Settings, constants, get_objective
from fedkin.methods.unified import Unified

# weights of a model whose Hessian clients may be asked for
LARGEST = 500


@dataclass
class Coordinate(Unified):
    """Optimisers that step w or all beta, by a coin that all clients share.

    p_w, the chance of w, follows from the constants mu, L_w, L_beta of F unless given; these
    follow from L' (`smooth`) and mu' (`convex`) of the clients' losses unless given. L' is
    estimated by the clients. mu' is the model's l2; without one, of a linear model with one
    output, it is the smallest eigenvalue of a Hessian over all data at the clients' own fits: of
    the clients' mean where lam ties their betas ("mean": mu = mu'/(3M)), else of each client's;
    of other models it is L' over the number of all samples, and never less than that: mu above
    the true strong convexity makes accelerated methods stall. A round is one communication:
    the stretch of beta steps before it, which a client does alone, is part of the same call.
    """

    not_private: ClassVar[str] = "its steps go by the smoothness of single clients' data"

    p_w: Annotated[Chance | None, Doc("chance of a step on w")] = None
    smooth: Annotated[Positive | None, Doc("L', smoothness of a sample's loss")] = None
    convex: Annotated[
        NotNegative | Literal["mean", "truth"] | None,
        Doc(
            "mu', strong convexity of clients' losses: a number; mean or truth, the smallest "
            "eigenvalue of their mean Hessian at their own fits or at the generator's beta*"
        ),
    ] = None
    mu: Annotated[Positive | None, Doc("strong convexity of F")] = None
    L_w: Annotated[NotNegative | None, Doc("smoothness of F in w")] = None
    L_beta: Annotated[NotNegative | None, Doc("smoothness of F in beta")] = None

    def remarks(self, fed: Federation) -> tuple[Remark, ...]:
        if fed.asked == fed.size:
            return ()
        said = (
            f"the steps of {self.name} are as long as they may be if everybody takes part; with "
            f"{fed.asked} of {fed.size} clients in a round losses may rise: ask all, or use lsgd"
        )
        return (Remark(said, unstable=True),)

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
        found = self.bounds(fed, smooth, 0.0)
        return Constants(
            self.strong_convexity(fed, smooth) if self.mu is None else self.mu,
            found.L_w if self.L_w is None else self.L_w,
            found.L_beta if self.L_beta is None else self.L_beta,
        )

    def bounds(self, fed: Federation, smooth: float, convex: float) -> Constants:
        """The constants that hold for all clients' settings."""
        numbers = self.numbers(fed)
        numbers.pop("w_share", None)
        shares = set(self.shares(fed).tolist()) if self.objective == "apfl2" else {0.5}
        all_ = [
            constants(self.objective, own, fed.size, smooth, convex)
            for own in (Settings(fed.problem.layout, w_share=a, **numbers) for a in shares)
        ]
        return Constants(
            min(c.mu for c in all_), max(c.L_w for c in all_), max(c.L_beta for c in all_)
        )

    def strong_convexity(self, fed: Federation, smooth: float) -> float:
        """mu of F, rather too small than too large."""
        least = smooth / float(fed.samples.sum()) / (3 * fed.size)
        known = fed.problem.l2 if self.convex is None else self.convex
        if isinstance(known, str):
            return max(least, self.mean_convexity(fed, known) / (3 * fed.size))
        if not known and is_generalised_linear(fed.problem) and fed.problem.size <= LARGEST:
            own = Settings(fed.problem.layout, **{**self.numbers(fed), "w_share": 0.5})
            if get_objective(self.objective).tied(own):
                known = self.mean_convexity(fed, "mean")
                mu = min(known / (3 * fed.size), self.bounds(fed, smooth, known).mu)
                return max(least, mu)
            known = max(0.0, float(fed.map(least_curvature)["least"].min()))
        return max(least, self.bounds(fed, smooth, float(known)).mu)

    def mean_convexity(self, fed: Federation, where: str) -> float:
        """The smallest eigenvalue of the clients' mean Hessian, at their own fits or at beta*."""
        truth = fed.problem.data.truth
        if not is_generalised_linear(fed.problem) or fed.problem.size > LARGEST:
            raise FedkinError(
                f"convex = '{where}' is for linear models with one output and at most {LARGEST} "
                "weights: give a number"
            )
        if where == "mean":
            mean = fed.mean(curvature)
        elif truth is None or truth.betas.shape[1] != fed.problem.size:
            raise FedkinError("convex = 'truth' needs a generator's data and a model without bias")
        else:
            mean = fed.mean(curvature, each={"at_": truth.betas.to(fed.problem.initial)})
        return max(0.0, float(torch.linalg.eigvalsh(mean["hessian"].double())[0]))

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


def curvature(client: Client, at_: Tensor | None = None) -> dict[str, Tensor]:
    """The Hessian of the client's loss at a model, or at its own fit."""
    found = hessian(client, own_fit(client) if at_ is None else at_)
    return {"hessian": found.to(client.problem.dtype)}


def least_curvature(client: Client) -> dict[str, Tensor]:
    """The smallest eigenvalue of the Hessian of the client's loss at its own fit."""
    found = torch.linalg.eigvalsh(hessian(client, own_fit(client)))[:, :1]
    return {"least": found.to(client.problem.dtype)}
