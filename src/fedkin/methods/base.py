"""What every method offers, and the little that most of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests
from fedkin.errors import FedkinError
from fedkin.methods.shared.optimisers import Descent, OptimiserName, ServerName, server_step

# what a hyper-parameter may be; checked at the door, not in arithmetic (Doc says what it is)
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
Chance = Annotated[float, Gt(0), Lt(1)]
Count = Annotated[int, Ge(1), Le(10**6)]  # of steps, clusters, ...: more is a slip of the finger
CountOrZero = Annotated[int, Ge(0), Le(10**6)]
BelowOne = Annotated[float, Ge(0), Lt(1)]

# settings of local steps other than plain SGD's, and of the server's
MOVES = ("optimiser", "momentum", "beta2", "eps", "weight_decay", "clip", "optimiser_state")
SERVER = ("server_optimiser", "server_lr", "server_momentum", "server_beta2", "tau")
SGD_ONLY = dict.fromkeys(MOVES, "its local steps are SGD by definition")
NO_ONE_MODEL = dict.fromkeys(SERVER, "its server does not average into one model")


class State(SimpleNamespace):
    """What the server remembers between rounds: tensors and plain numbers by name."""


class Remark(NamedTuple):
    """A sentence about a method's settings; if they are `unstable`, it is said again where
    training diverges, as the likely cause."""

    sentence: str
    unstable: bool = False


@dataclass
class Method:
    """A published method: its server part here, its client steps as plain functions.

    Hyper-parameters are the dataclass fields. A lost client is a row that did not
    arrive; each method's docstring says what that means for it.
    """

    name: ClassVar[str]
    # names that options had before, and those that they have now
    former: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # settings that other methods have and that would contradict this one's rule, with the reason
    refuses: ClassVar[Mapping[str, str]] = {**SGD_ONLY, **NO_ONE_MODEL}
    # what a round sends to the server at most: sums over the clients sampled, and single clients'
    # answers (`map`); this is what differential privacy accounts for
    releases: ClassVar[tuple[int, int]] = (1, 0)
    # why no noise could protect what this method's clients send; "" where it can
    not_private: ClassVar[str] = ""
    # what a model must have: "layers" (more than one) or "norms" (normalisation); "" for nothing
    needs: ClassVar[str] = ""
    # whether clients may bring modules of their own
    takes_models: ClassVar[bool] = False

    def check(self) -> None:
        """Refuse settings that contradict the rule."""
        for name, why in self.refuses.items():
            default = getattr(type(self), name, None)
            if getattr(self, name, default) != default:
                raise FedkinError(refusal(self.name, name, why))

    def remarks(self, fed: Federation) -> tuple[Remark, ...]:
        """What a user should know of these settings before the first round."""
        return ()

    @property
    def gradient_step(self) -> tuple[str, float] | None:
        """The setting that is the size of clients' plain gradient steps, and its value."""
        return None

    def init(self, fed: Federation) -> State:
        """The server's state before the first round."""
        raise NotImplementedError

    def round(self, fed: Federation, s: State) -> None:
        """One communication round; changes the state."""
        raise NotImplementedError

    def finish(self, fed: Federation, s: State) -> None:
        """What there is to do once, after the last round and before its models are judged.

        More rounds may follow if the run is made longer: they must not notice.
        """

    def personal(self, fed: Federation, s: State) -> Requests:
        """The request whose answer `model` is the model each client would really use."""
        raise NotImplementedError

    def global_model(self, s: State) -> Tensor | None:
        """The one model for all, where the method has one."""
        return None

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        """A first model for each client of `new`, none of which took part: [M, d].

        It is what they begin their steps at home with; nobody else's model changes. `hosts`:
        the clients that took part have their data here, and can be asked to train.
        """
        x = self.global_model(s)
        if x is None:
            raise FedkinError(
                f"method '{self.name}' has no part that clients share, so it has nothing to give "
                "a newcomer"
            )
        return x.expand(new.size, -1)

    def results(self, s: State) -> dict[str, Tensor]:
        """Tables worth keeping at the end of a run, such as who learnt from whom [N, N]."""
        return {}


def refusal(method: str, setting: str, why: str) -> str:
    """The sentence about a setting that a method does not take."""
    return f"method '{method}' takes no {setting}: {why}; leave {setting} out"


class OneModel(Method):
    """Methods with one model x for all, which every client uses as it is."""

    def personal(self, fed: Federation, s: State) -> Requests:
        return fed.request(use, shared={"model": s.x})

    def global_model(self, s: State) -> Tensor | None:
        x: Tensor = s.x
        return x


@dataclass
class LocalWork(Method):
    """Methods whose clients take SGD steps of size `lr`: `local_steps`, or whole `local_epochs`."""

    lr: Annotated[Positive, Doc("size of a local step")] = 0.1
    local_steps: Annotated[Count, Doc("local steps in a round")] = 10
    local_epochs: Annotated[
        Count | None, Doc("passes over a client's data in a round, in place of local_steps")
    ] = None

    @property
    def gradient_step(self) -> tuple[str, float] | None:
        return "lr", self.lr

    @property
    def work(self) -> dict[str, Any]:
        """The local work, as a step's `**work` takes it."""
        if self.local_epochs is not None:
            return {"local_epochs": self.local_epochs}
        return {"local_steps": self.local_steps}


@dataclass
class LocalTraining(LocalWork):
    """Methods whose clients may take the steps of another optimiser than SGD."""

    optimiser: Annotated[OptimiserName, Doc("how a gradient becomes a local step")] = "sgd"
    momentum: Annotated[BelowOne, Doc("of momentum and nesterov; beta1 of adam and adamw")] = 0.9
    beta2: Annotated[BelowOne, Doc("of adam and adamw")] = 0.999
    eps: Annotated[Positive, Doc("of adam and adamw")] = 1e-8
    weight_decay: Annotated[
        NotNegative, Doc("added to gradients as this times the model; by adamw to the step")
    ] = 0.0
    clip: Annotated[Positive | None, Doc("the longest that a gradient may be (none: any)")] = None
    optimiser_state: Annotated[
        Literal["fresh", "kept"], Doc("begins anew in every round, or stays at the client")
    ] = "fresh"

    refuses: ClassVar[Mapping[str, str]] = NO_ONE_MODEL

    @property
    def moves(self) -> dict[str, Any]:
        """How local steps are taken; nothing for plain SGD."""
        if self.optimiser == "sgd" and not self.weight_decay and self.clip is None:
            return {}
        names = ["optimiser", "weight_decay"]
        names += ["clip"] if self.clip is not None else []
        if self.optimiser == "sgd":
            return {name: getattr(self, name) for name in names}
        names += ["momentum"] + (["beta2", "eps"] if self.optimiser.startswith("adam") else [])
        return {name: getattr(self, name) for name in names} | {
            "kept": self.optimiser_state == "kept"
        }

    @property
    def gradient_step(self) -> tuple[str, float] | None:
        return None if self.moves else super().gradient_step

    @property
    def work(self) -> dict[str, Any]:
        return {**super().work, **self.moves}


@dataclass
class Averaging(OneModel, LocalTraining):
    """Methods whose server moves one model x along the mean of the clients' changes."""

    weighted: Annotated[bool, Doc("clients count by their samples")] = False
    server_optimiser: Annotated[
        ServerName, Doc("how the mean change becomes the server's step: sgd adds it")
    ] = "sgd"
    server_lr: Annotated[Positive, Doc("size of the server's step")] = 1.0
    server_momentum: Annotated[BelowOne, Doc("of the server; beta1 of adam and yogi")] = 0.9
    server_beta2: Annotated[BelowOne, Doc("of the server's adam and yogi")] = 0.99
    tau: Annotated[Positive, Doc("of the server's adam and yogi, added to the root")] = 1e-3

    refuses: ClassVar[Mapping[str, str]] = {}

    def init(self, fed: Federation) -> State:
        return State(x=fed.initial_model())

    def advance(self, s: State, dx: Tensor, answered: float) -> None:
        """x <- x + dx, or as the server's optimiser moves; if nobody answered, x stays."""
        if answered:
            server_step(
                s, dx, self.server_optimiser, self.server_lr, self.server_momentum,
                self.server_beta2, self.tau,
            )  # fmt: skip

    def weights(self, fed: Federation) -> Tensor | None:
        """What each client counts in the mean; None: all the same."""
        return fed.samples if self.weighted else None


def sgd(client: Client, y: Tensor, lr: Any, work: Mapping[str, Any]) -> Tensor:
    """y <- y - lr*g_i(y), as often as the work says and as its optimiser, if any, steps."""
    return Descent(client, lr, work).run(y)


def use(client: Client, model: Tensor) -> dict[str, Tensor]:
    """The client uses the model it is given."""
    return {"model": model}


def own(client: Client, x: Tensor, kept: str) -> dict[str, Tensor]:
    """The client's own model, kept under this name; x as long as it has never trained one."""
    return {"model": client.recall(kept, x)}
