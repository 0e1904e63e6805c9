"""How a gradient becomes a step: at the clients as torch.optim does it, at the server too."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.core.batches import Batch
from fedkin.core.client import Client, descend

OptimiserName = Literal["sgd", "momentum", "nesterov", "adam", "adamw"]
ServerName = Literal["sgd", "momentum", "adam", "yogi"]
# how much local work there is; what else comes with it says how steps are taken
AMOUNT = ("local_steps", "local_epochs")
# what torch's clip_grad_norm_ adds to a norm before it divides by it
TINY = 1e-6


class Descent:
    """The local steps of one model at a client: how many, and how each is taken.

    `work` is a step's `**work`: plain SGD when it tells the amount alone, else an optimiser by
    its name with its numbers (or columns of them). What the optimiser remembers has a row for
    each client and stands still in rows that are done; it is new in every round, or stays at
    the client under the name `of` (`kept`).
    """

    def __init__(self, client: Client, lr: Any, work: Mapping[str, Any], of: str = "y") -> None:
        self.client, self.lr, self.of = client, lr, of
        self.steps = client.steps(**{k: v for k, v in work.items() if k in AMOUNT})
        self.rule = {k: v for k, v in work.items() if k not in AMOUNT}
        self._memory: dict[str, Tensor] = {}

    def run(self, y: Tensor) -> Tensor:
        """All steps on f_i from y; what is to be kept is kept."""
        if not self.rule:
            start, given = self.client.copy(y), {"lr": self.lr}
            done: Tensor = self.client.repeat(self.steps, self.client.descend_, start, given=given)
            return done
        y = self.client.repeat(self.steps, self.step, self.client.copy(y))
        self.keep()
        return y

    def step(
        self, y: Tensor, batch: Batch | None = None, towards: Tensor | None = None, pull: Any = 0.0
    ) -> Tensor:
        """One step on f_i(y) + pull/2*|y - towards|^2; y's memory may be used up."""
        if self.rule:
            g = self.client.grad(y, batch)
            return self.move(y, g if towards is None else g + pull * (y - towards))
        return self.client.descend_(y, self.lr, batch, towards=towards, pull=self.lr * pull)

    def step_along(self, y: Tensor, at: Tensor, share: Any, batch: Batch) -> Tensor:
        """One step by a share of the gradient at another model; y's memory may be used up."""
        if self.rule:
            return self.move(y, self.client.grad(at, batch), share)
        return self.client.descend_(at, self.lr * share, batch, into=y)

    def move(self, y: Tensor, g: Tensor, share: Any = None) -> Tensor:
        """One step along the gradient g (of which only a share counts, where given)."""
        if not self.rule:
            return descend(y, self.lr if share is None else self.lr * share, g)
        rule, lr = self.rule, self.lr
        g = g if share is None else share * g
        if "clip" in rule:
            g = g * (rule["clip"] / (g.norm(dim=1, keepdim=True) + TINY)).clamp(max=1)
        if rule["optimiser"] == "adamw":
            y = y * (1 - lr * rule["weight_decay"])
        else:
            g = g + rule["weight_decay"] * y
        match rule["optimiser"]:
            case "sgd":
                return descend(y, lr, g)
            case "momentum" | "nesterov":
                m = self._remember("m", rule["momentum"] * self._recall("m", g) + g)
                ahead = g + rule["momentum"] * m if rule["optimiser"] == "nesterov" else m
                return descend(y, lr, ahead)
        m = self._remember("m", torch.lerp(self._recall("m", g), g, 1 - rule["momentum"]))
        squares = torch.lerp(self._recall("s", g), g * g, 1 - rule["beta2"])
        s = self._remember("s", squares)
        t = self._remember("t", self._recall("t", g[:, :1]) + 1)
        root = (s / faded(rule["beta2"], t)).sqrt() + rule["eps"]
        return descend(y, lr, m / (root * faded(rule["momentum"], t)))

    def keep(self) -> None:
        """Leave with the client what the optimiser remembers, where that is asked for."""
        if self.rule.get("kept"):
            self.client.keep(**{f"{self.of}_{name}": v for name, v in self._memory.items()})

    def _recall(self, name: str, like: Tensor) -> Tensor:
        if name not in self._memory:
            zero, kept = torch.zeros_like(like), self.rule.get("kept")
            old = self.client.recall(f"{self.of}_{name}", zero) if kept else zero
            self._memory[name] = old
        return self._memory[name]

    def _remember(self, name: str, new: Tensor) -> Tensor:
        if self.client.active is not None:
            busy = torch.from_numpy(self.client.active.astype(bool))[:, None].to(new.device)
            new = torch.where(busy, new, self._memory[name])
        self._memory[name] = new
        return new


def faded(beta: Any, t: Tensor) -> Tensor:
    """1 - beta^t, exact also where beta is almost one."""
    return -torch.expm1(t * torch.as_tensor(beta, dtype=torch.float64, device=t.device).log().to(t))


def server_step(
    s: SimpleNamespace, dx: Tensor, optimiser: ServerName, lr: float, momentum: float,
    beta2: float, tau: float,
) -> None:  # fmt: skip
    """x moves along dx, the mean of what clients did to it; s keeps what the optimiser remembers.

    sgd: x <- x + lr*dx. momentum (FedAvgM): m <- beta1*m + dx, x <- x + lr*m. Of FedOpt:
    m <- beta1*m + (1 - beta1)*dx, x <- x + lr*m/(sqrt(v) + tau), with v at first tau^2 and
    adam: v <- beta2*v + (1 - beta2)*dx^2, yogi: v <- v - (1 - beta2)*dx^2*sign(v - dx^2).
    """
    if optimiser == "sgd":
        s.x = torch.add(s.x, dx, alpha=lr)
        return
    m = vars(s).get("server_m", torch.zeros_like(s.x))
    if optimiser == "momentum":
        s.server_m = momentum * m + dx
        s.x = s.x + lr * s.server_m
        return
    v, squared = vars(s).get("server_v", torch.full_like(s.x, tau**2)), dx * dx
    s.server_m = momentum * m + (1 - momentum) * dx
    towards = squared - v if optimiser == "adam" else squared * (squared - v).sign()
    s.server_v = v + (1 - beta2) * towards
    s.x = s.x + lr * s.server_m / (s.server_v.sqrt() + tau)
