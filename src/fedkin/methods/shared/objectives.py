"""The unified objectives F(w, beta) = 1/M sum_m f_m(w, beta_m): one small function each.

A function f(loss, w, beta, s) is written once, in plain arithmetic. `loss(v)` is the client's
own loss at a model v, `w` the shared block (already rescaled: W = w/sqrt(M)), `beta` the
client's own, `s` the settings. Gradients, constants and the model a client uses follow from
it: the client uses the model of the formula's last loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from torch import Tensor

from fedkin.errors import FedkinError, unknown
from fedkin.methods.shared.formulas import Formula, Place, Point, square
from fedkin.methods.shared.parts import body, place
from fedkin.models.layout import Layout

BLOCKS = ("w", "beta")

Rule = Callable[[Any, Any, Any, "Settings"], Any]


@dataclass(frozen=True)
class Settings:
    """Numbers of the objectives (or columns of them), and which parts of a model are shared.

    Objectives that rescale w see scale*w, scale = 1/sqrt(M).
    `shared_parts` and `own_parts` go by the beginnings of parameter names (`0.,2.weight`) or by
    ranges of input features (`0:10`), separated by commas; empty means the default.
    """

    layout: Layout
    lam: Any = 1.0
    relax: Any = 1.0
    w_share: Any = 0.1
    inner_lr: Any = 0.1
    scale: Any = 1.0
    shared_parts: str = ""
    own_parts: str = ""

    def place(self, parts: str) -> Place:
        return place(self.layout, parts)


@dataclass(frozen=True)
class Objective:
    """A rule and what is known of it.

    `about` is the rule as people write it. `rescaled`: its w is w/sqrt(M). `closed`: it is a sum
    of losses and squares at linear points, so its gradients need no autograd; nor do they where
    `slope(loss, w, s)` writes the one by w out, of a rule without beta.
    """

    name: str
    rule: Rule
    rescaled: bool
    closed: bool
    about: str = ""
    slope: Callable[[Any, Any, Settings], Any] | None = None

    def scale(self, settings: Settings) -> Any:
        """What w is multiplied by before the rule sees it."""
        return settings.scale if self.rescaled else 1.0

    def formula(self, settings: Settings) -> Formula:
        """The rule with symbols in place of its blocks."""
        scales = (("w", self.scale(settings)), ("beta", 1.0))
        w, beta = (Point({name: (c, None)}) for name, c in scales)
        result: Formula = self.rule(
            lambda point: Formula(losses=((1.0, point),)), w, beta, settings
        )
        return result

    def is_a_model(self, block: str, settings: Settings) -> bool:
        """Whether a block is a whole model by itself."""
        if not self.closed:
            return block == "w" or self.slope is None
        formula = self.formula(settings)
        return formula.uses(block) and formula.place(block) is None

    def tied(self, settings: Settings) -> bool:
        """Whether own blocks are drawn to the shared one, or there are none: F is then as convex
        as the clients' losses are together, and not as each of them."""
        formula = self.formula(settings)
        drawn = any(set(point.parts) == set(BLOCKS) for _, point in formula.squares)
        return drawn or not formula.uses("beta")

    def starts(self, settings: Settings, initial: Tensor) -> tuple[Tensor, Tensor]:
        """w and beta that make every client's model the initial one; a block not used is empty."""
        scale = self.scale(settings)
        if not self.closed:
            return initial / scale, initial[:, :0] if self.slope else initial
        formula = self.formula(settings)
        here, there = (formula.place(name) for name in BLOCKS)
        w, beta = (
            initial[:, :0]
            if not formula.uses(name)
            else initial
            if (where := formula.place(name)) is None
            else where.pick(initial)
            for name in BLOCKS
        )
        if here is not None and there is not None:  # what both could hold, the shared block holds
            beta = there.pick(initial - here(w))
        return w / scale, beta


OBJECTIVES: dict[str, Objective] = {}
# users' own, by where they come from
OWN: dict[str, Objective] = {}


def objective(
    name: str, about: str = "", rescaled: bool = True, closed: bool = False
) -> Callable[[Rule], Rule]:
    """Make a rule available by name."""

    def enter(rule: Rule) -> Rule:
        OBJECTIVES[name] = Objective(name, rule, rescaled, closed, about)
        return rule

    return enter


def add_objective(name: str, rule: Rule) -> None:
    """Make a user's rule available; nothing is known of it, so its gradients are autograd's.

    A rule decorated with `objective` keeps what the decorator says of it.
    """
    said = [known for known in OBJECTIVES.values() if known.rule is rule]
    OWN[name] = replace(said[0], name=name) if said else Objective(name, rule, True, False)


def get_objective(name: str) -> Objective:
    if name not in OBJECTIVES and name not in OWN:
        raise unknown("objective", name, OBJECTIVES)
    return OWN[name] if name in OWN else OBJECTIVES[name]


def in_words() -> str:
    """Every objective with its formula, a line each."""
    return "\n".join(f"  {name}: {found.about}" for name, found in OBJECTIVES.items())


# the objectives ------------------------------------------------------------------------


@objective("traditional", "f_m(w)", rescaled=False, closed=True)
def traditional(loss: Any, w: Any, beta: Any, s: Settings) -> Any:
    """One model for all."""
    return loss(w)


@objective("personal", "f_m(beta_m)", closed=True)
def personal(loss: Any, w: Any, beta: Any, s: Settings) -> Any:
    """Everybody alone."""
    return loss(beta)


@objective("mt2", "relax*f_m(W) + f_m(beta_m) + lam/2*|beta_m - W|^2", closed=True)
def multi_task(loss: Any, w: Any, beta: Any, s: Settings) -> Any:
    """Multi-task: own models near a shared one that fits everybody too (Lambda is `relax`)."""
    return s.relax * loss(w) + loss(beta) + s.lam / 2 * square(beta - w)


@objective("mx2", "f_m(beta_m) + lam/2*|beta_m - W|^2", closed=True)
def mixture(loss: Any, w: Any, beta: Any, s: Settings) -> Any:
    """Mixture, the same as Moreau envelopes: own models near their mean."""
    return loss(beta) + s.lam / 2 * square(w - beta)


@objective("apfl2", "relax*f_m(W) + f_m((1 - w_share)*beta_m + w_share*W)", closed=True)
def adaptive_mix(loss: Any, w: Any, beta: Any, s: Settings) -> Any:
    """APFL: the client uses a mix of both models."""
    return s.relax * loss(w) + loss((1 - s.w_share) * beta + s.w_share * w)


@objective("ws2", "f_m([W, beta_m]), W the parts that are shared, beta_m the others", closed=True)
def weight_sharing(loss: Any, w: Any, beta: Any, s: Settings) -> Any:
    """Some parts of the model are shared (default: all but the last layer), the others own."""
    shared = s.place(s.shared_parts or body(s.layout, "objective 'ws2'", "shared_parts = '0:10'"))
    return loss(shared(w) + shared.rest()(beta))


@objective(
    "residual", "mean loss of A(W, x) + A'(beta_m, x), two models whose outputs add", closed=True
)
def residual(loss: Any, w: Any, beta: Any, s: Settings) -> Any:
    """Outputs of a shared and an own model added, each with its own features or parts.

    In linear models the outputs add when the weights do. For other models, put two networks
    side by side (`models.Branches`) and name their parts.
    """
    shared, own = s.place(s.shared_parts), s.place(s.own_parts)
    layers = sum(len(slot.shape) > 1 for slot in s.layout.slots)
    if layers > 1 and shared.meets(own):
        raise FedkinError(
            "objective 'residual': this model is not linear, so sharing and owning the same "
            "weights does not add outputs; join two networks with fedkin.models.Branches and "
            "set shared_parts = 'shared.' and own_parts = 'own.'"
        )
    return loss(shared(w) + own(beta))


@objective("maml", "f_m(w - inner_lr*grad f_m(w))", rescaled=False)
def maml(loss: Any, w: Any, beta: Any, s: Settings) -> Any:
    """A shared start from which one gradient step of size inner_lr leads to the client's model."""
    return loss(w - s.inner_lr * loss.grad(w))


def maml_slope(loss: Any, w: Any, s: Settings) -> Any:
    """(I - inner_lr*H(w)) grad f_m(w - inner_lr*grad f_m(w))."""
    return loss.through_step(w, s.inner_lr)


OBJECTIVES["maml"] = replace(OBJECTIVES["maml"], slope=maml_slope)


# constants -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constants:
    """F is mu-strongly convex, L_w-smooth in w and L_beta-smooth in all beta together."""

    mu: float
    L_w: float
    L_beta: float


def constants(
    name: str, settings: Settings, clients: int, smooth: float, convex: float
) -> Constants:
    """The constants of F when every client's loss is `smooth`-smooth and `convex`-convex.

    L are sums over the formula's terms. mu is the smallest eigenvalue of
    [[w.w, w.beta/sqrt(M)], [w.beta/sqrt(M), beta.beta/M]], which is the best bound there is;
    the published ones are simpler and never larger where their conditions hold.
    """
    found = get_objective(name)
    if not found.closed:
        raise FedkinError(
            f"objective '{name}' has no known constants: give L_w, L_beta and mu, or use lsgd"
        )
    formula = found.formula(settings)
    L_w, L_beta = (formula.curvature(smooth, b, b) for b in ("w", "beta"))
    a, c = formula.curvature(convex, "w", "w"), formula.curvature(convex, "beta", "beta") / clients
    b = formula.curvature(convex, "w", "beta") / sqrt(clients)
    if not L_w or not L_beta:  # a block that is not used has no say
        mu = c if L_beta else a
    else:
        mu = max(0.0, (a + c - sqrt((a - c) ** 2 + 4 * b**2)) / 2)
    return Constants(mu, L_w, L_beta / clients)
