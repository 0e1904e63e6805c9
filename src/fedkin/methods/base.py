"""What every method offers, and the little that most of them share."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests

# what a hyper-parameter may be; checked at the door, not in arithmetic (Doc says what it is)
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
Chance = Annotated[float, Gt(0), Lt(1)]
Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]


class State(SimpleNamespace):
    """What the server remembers between rounds: tensors and plain numbers by name."""


@dataclass
class Method:
    """A published method: its server part here, its client steps as plain functions.

    Hyper-parameters are the dataclass fields. A lost client is a row that did not
    arrive; each method's docstring says what that means for it.
    """

    name: ClassVar[str]

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

    def results(self, s: State) -> dict[str, Tensor]:
        """Tables worth keeping at the end of a run, such as who learnt from whom [N, N]."""
        return {}


@dataclass
class LocalWork(Method):
    """Methods whose clients take SGD steps of size `lr`: `local_steps`, or whole `local_epochs`."""

    lr: Annotated[Positive, Doc("size of a local step")] = 0.01
    local_steps: Annotated[Count, Doc("local steps in a round")] = 10
    local_epochs: Annotated[
        Count | None, Doc("passes over a client's data in a round, in place of local_steps")
    ] = None

    @property
    def work(self) -> dict[str, Any]:
        """The local work, as a step's `**work` takes it."""
        if self.local_epochs is not None:
            return {"local_epochs": self.local_epochs}
        return {"local_steps": self.local_steps}


def sgd(client: Client, y: Tensor, lr: Any, work: dict[str, Any]) -> Tensor:
    """y <- y - lr*g_i(y), as often as the work says."""
    steps = client.steps(**work)
    result: Tensor = client.repeat(steps, client.descend_, client.copy(y), given={"lr": lr})
    return result


def use(client: Client, model: Tensor) -> dict[str, Tensor]:
    """The client uses the model it is given."""
    return {"model": model}


def own(client: Client, x: Tensor, kept: str) -> dict[str, Tensor]:
    """The client's own model, kept under this name; x as long as it has never trained one."""
    return {"model": client.recall(kept, x)}
