"""The unified objective as its optimisers see it: its settings, starts, models and value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Request
from fedkin.errors import FedkinError
from fedkin.methods.base import Chance, CountOrZero, Method, NotNegative, State
from fedkin.methods.own_objective import OwnObjective
from fedkin.methods.shared.objectives import Settings, get_objective, in_words


def shares_of(given: Any, name: str = "w_share") -> float | tuple[float, ...]:
    """Numbers above 0 and below 1: one, or one for each client."""
    many = isinstance(given, Sequence) and not isinstance(given, str)
    values = []
    for value in given if many else [given]:
        try:
            values.append(float(value))
        except (TypeError, ValueError):
            raise FedkinError(f"{name} has {value!r}, which is not a number") from None
        if not 0 < values[-1] < 1:
            raise FedkinError(f"{name} must be above 0 and below 1, but it has {value}")
    return tuple(values) if many else values[0]


def _w_share(given: Any) -> Any:
    """As people write it: .3, [.1, .3], "0.1,0.3" or a column's name."""
    if isinstance(given, str):
        parts = given.split(",")
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            return given
        given = numbers if len(parts) > 1 else numbers[0]
    return shares_of(given)


WShare = Annotated[Chance | tuple[Chance, ...] | str, BeforeValidator(_w_share)]


@dataclass
class Unified(Method):
    """F(w, beta) = 1/M sum_m f_m(w, beta_m): a shared block w, an own block beta_m per client.

    f_m is one of the objectives below, with f_m there client m's own loss; lam, relax (Lambda),
    w_share, inner_lr, shared_parts and own_parts are its settings. With `rescale` objectives see
    W = w/sqrt(M), else W = w. A client uses the model that the objective says, or, with
    `beta_only`, beta_m alone. F is recorded every `record_every` rounds (0: never).
    """

    former: ClassVar[Mapping[str, tuple[str, ...]]] = {"alpha": ("w_share", "inner_lr")}

    objective: Annotated[str, Doc(f"f_m(w, beta_m), what is minimised:\n{in_words()}")] = "mx2"
    lam: Annotated[NotNegative, Doc("how strongly own models are drawn to the shared one")] = 1.0
    relax: Annotated[NotNegative, Doc("Lambda, the weight of the shared model's own loss")] = 1.0
    w_share: Annotated[
        WShare,
        Doc(
            "share of W in apfl2's mix: a number, a list with one for each client, or the column "
            "of the client table that has them"
        ),
    ] = 0.1
    inner_lr: Annotated[NotNegative, Doc("size of maml's step")] = 0.1
    rescale: Annotated[
        bool | None,
        Doc("whether W is w/sqrt(M); left out: not with lsgd, whose steps on w it shortens"),
    ] = None
    shared_parts: Annotated[str, Doc("shared parts of the model, as in 0.,2.weight or 0:10")] = ""
    own_parts: Annotated[str, Doc("own parts of the model, of objective residual")] = ""
    beta_only: Annotated[bool, Doc("whether clients use beta alone")] = False
    record_every: Annotated[CountOrZero, Doc("rounds between records of F, 0 for none")] = 0

    def __post_init__(self) -> None:
        get_objective(self.objective)

    def rescales(self) -> bool:
        """Whether W is w/sqrt(M). A step on w, whose size goes by the smoothness in w, then moves W
        as much as a step on beta moves that, and w's turn comes as often as beta's."""
        return True if self.rescale is None else self.rescale

    @property
    def gradient_step(self) -> None:
        """Steps go along the objective, whose curvature is another one than the loss's."""

    def numbers(self, fed: Federation) -> dict[str, Any]:
        """The objective's settings that all clients share."""
        names = ["lam", "relax", "inner_lr", "shared_parts", "own_parts"]
        names += ["w_share"] if isinstance(self.w_share, float | int) else []
        scale = fed.size**-0.5 if self.rescales() else 1.0
        return {"scale": scale} | {name: getattr(self, name) for name in names}

    def asked(self, fed: Federation, at: Tensor | None = None) -> dict[str, Any]:
        """The clients `at`, the objective and its settings, as requests take them."""
        found: dict[str, Any] = {"at": at, "objective": self.objective, **self.numbers(fed)}
        if "w_share" not in found and self.objective == "apfl2":
            shares = self.shares(fed).to(fed.problem.initial)
            found["each"] = {"w_share": shares if at is None else shares[at]}
        return found

    def shares(self, fed: Federation) -> Tensor:
        """Every client's share of W in apfl2's mix."""
        named = isinstance(self.w_share, str)
        given = fed.column(self.w_share) if isinstance(self.w_share, str) else self.w_share
        values = shares_of(given, f"column '{self.w_share}'" if named else "w_share")
        many = [values] * fed.size if isinstance(values, float) else list(values)
        if len(many) != fed.size:
            raise FedkinError(
                f"w_share has {len(many)} numbers for {fed.size} clients; give one for each, or one"
            )
        return torch.tensor(many, dtype=torch.float64)

    def init(self, fed: Federation) -> State:
        """w that makes every model the initial one, and what turns w into a model (0: none)."""
        found = get_objective(self.objective)
        if self.objective == "apfl2":
            self.shares(fed)  # refused here rather than in the first round
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
            used_model, shared={"w": self.used(s)}, beta_only=self.beta_only, kept=self.kept(),
            **self.asked(fed),
        )  # fmt: skip

    def used(self, s: State) -> Tensor:
        """The w that is used and recorded."""
        w: Tensor = s.w
        return w

    def kept(self) -> str:
        """The name under which clients keep the beta that is used and recorded."""
        return "beta"

    def global_model(self, s: State) -> Tensor | None:
        return s.model_scale * self.used(s) if s.model_scale else None

    def value(self, fed: Federation, s: State) -> float:
        """F at the present w and beta; costs nothing, for figures."""
        request = fed.request(
            own_value, shared={"w": self.used(s)}, kept=self.kept(), **self.asked(fed)
        )
        return float(fed.look(request)["value"].mean())


# steps -----------------------------------------------------------------------------------


def used_model(
    client: Client, w: Tensor, beta_only: bool, kept: str, **settings: Any
) -> dict[str, Tensor]:
    f = OwnObjective(client, **settings)
    beta = client.recall(kept, f.start)
    return {"model": beta if beta_only else f.model(w, beta)}


def own_value(client: Client, w: Tensor, kept: str, **settings: Any) -> dict[str, Tensor]:
    f = OwnObjective(client, **settings)
    return {"value": f.value(w, client.recall(kept, f.start))}
