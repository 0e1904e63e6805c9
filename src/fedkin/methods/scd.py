"""SCD-PFL and ASCD-PFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.methods.base import Positive, State
from fedkin.methods.coordinate import Coordinate, momentum, snapshot_chance, step_sizes
from fedkin.methods.own_objective import OwnObjective, as_tensors
from fedkin.methods.registry import register


@register("scd")
@dataclass
class SCD(Coordinate):
    """SCD-PFL (Hanzely, Zhao & Kolar): stochastic steps on w or on all beta, by a coin.

    With probability p_w = L_w/(L_w + L_beta): w <- w - eta/p_w * mean_m grad_w f_m; else every
    client: beta_m <- beta_m - eta/(M*p_beta) * grad_beta f_m; gradients on fresh minibatches,
    eta = 1/(4*Lscr) unless given. A round is one step on w and the beta steps before it. Lost
    clients are left out of the mean and stand still.
    """

    eta: Annotated[Positive | None, Doc("size of a step")] = None

    def advance(self, fed: Federation, s: State) -> None:
        p_w = self.chance(s, 1)
        t = step_sizes(s, p_w, fed.size, self.eta)
        mean = fed.mean(
            step_betas, shared={"w": s.w}, lr=t["eta"] * t["weight"],
            steps=int(fed.random("coin").geometric(p_w)) - 1, **self.asked(fed, fed.sample()),
        )  # fmt: skip
        s.w = s.w - t["eta"] / p_w * mean["g"]


@register("ascd")
@dataclass
class ASCD(Coordinate):
    """ASCD-PFL (Hanzely, Zhao & Kolar): SCD-PFL with momentum.

    x = theta*z + (1 - theta)*y for both blocks. The coin's block b, with its gradient g at x
    on fresh minibatches over p_b: y_b <- x_b - eta*g, z_b <- nu*z_b + (1 - nu)*x_b - gamma*g;
    the other block keeps y and z. theta = min(0.8, 1/eta); eta, gamma and nu are ASVRCD-PFL's,
    with its th1 and rho (see there), but gamma is at most 8*eta/theta. That is ours: z's steps, of
    theta*gamma in what x sees, are then no longer than F's smoothness allows; with a smaller mu
    they would be, and the method diverges. w and beta_m are the y. Lost clients are left out of
    the mean and stand still.
    """

    eta: Annotated[Positive | None, Doc("size of a step")] = None

    def init(self, fed: Federation) -> State:
        s = super().init(fed)
        s.z = s.w.clone()
        return s

    def advance(self, fed: Federation, s: State) -> None:
        accelerated_step(self, fed, s, self.eta)


def accelerated_step(own: Coordinate, fed: Federation, s: State, eta: float | None) -> None:
    """One round of ASCD-PFL."""
    p_w = own.chance(s, 1)
    t = step_sizes(s, p_w, fed.size, eta)
    theta = min(0.8, 1 / t["eta"])
    t |= momentum(t["eta"], s.mu, snapshot_chance(fed, p_w), longest=8 * t["eta"] / theta)
    x = s.w + theta * (s.z - s.w)
    mean = fed.mean(
        step_betas_ahead, shared={"w": x}, theta=theta,
        steps=int(fed.random("coin").geometric(p_w)) - 1, **t, **own.asked(fed, fed.sample()),
    )  # fmt: skip
    if mean.answered:
        s.w, s.z = move(x, s.z, mean["g"] / p_w, **t)


def move(
    x: Tensor, z: Tensor, g: Tensor, eta: Any, gamma: Any, nu: Any, **_: Any
) -> tuple[Tensor, Tensor]:
    """y+ and z+ = nu*z + (1 - nu)*x + gamma/eta*(y+ - x)."""
    return x - eta * g, x + nu * (z - x) - gamma * g


def step_betas(
    client: Client, w: Tensor, lr: Any, steps: Any, **settings: Any
) -> dict[str, Tensor]:
    f = OwnObjective(client, **settings)
    beta = client.repeat(
        steps,
        lambda beta, f, w, lr: beta - lr * f.grad_beta(w, beta, client.next_batch()),
        client.recall("beta", f.start),
        given={"f": f, "w": w, **as_tensors(client, lr=lr)},
    )
    client.keep(beta=beta)
    return {"g": f.grad_w(w, beta, client.next_batch())}


def step_betas_ahead(
    client: Client, w: Tensor, theta: Any, steps: Any, eta: Any, weight: Any, gamma: Any, nu: Any,
    **settings: Any,
) -> dict[str, Tensor]:  # fmt: skip
    f = OwnObjective(client, **settings)
    t = as_tensors(client, theta=theta, eta=weight * eta, gamma=weight * gamma, nu=nu)

    def step(
        y: Tensor, z: Tensor, f: OwnObjective, w: Tensor, t: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        x = y + t["theta"] * (z - y)
        return move(x, z, f.grad_beta(w, x, client.next_batch()), **t)

    y = client.recall("beta", f.start)
    y, z = client.repeat(steps, step, y, client.recall("z", y), given={"f": f, "w": w, "t": t})
    client.keep(beta=y, z=z)
    return {"g": f.grad_w(w, y + theta * (z - y), client.next_batch())}
