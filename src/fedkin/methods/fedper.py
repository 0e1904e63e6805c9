"""FedPer, LG-FedAvg and FedBN: FedAvg of some layers, while the others stay with the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor
from typing_extensions import Doc

from fedkin.core.client import Client
from fedkin.core.federation import Federation, Requests
from fedkin.errors import FedkinError
from fedkin.methods.base import Averaging, State, sgd
from fedkin.methods.registry import register
from fedkin.methods.shared.parts import Halves, last, norms, place

Head = Annotated[
    str, Doc("parameters of the head by how their names begin, as in 4.,2.weight (empty: the last "
             "layer)")
]  # fmt: skip


@dataclass
class Partial(Averaging):
    """Methods that average the parts of a model that `shared` names; the others stay at home."""

    def shared(self, fed: Federation) -> str:
        """The names of the parameters that travel."""
        raise NotImplementedError

    def init(self, fed: Federation) -> State:
        travels = place(fed.problem.layout, self.shared(fed))
        if len(travels.index) == travels.size:
            raise FedkinError(
                f"method '{self.name}': the whole model would be shared, and nothing of it a "
                "client's own"
            )
        return State(x=travels.pick(fed.initial_model()))

    def round(self, fed: Federation, s: State) -> None:
        mean = fed.mean(
            train_both, at=fed.sample(), shared={"x": s.x}, weights=self.weights(fed),
            parts=self.shared(fed), lr=self.lr, **self.work,
        )  # fmt: skip
        self.advance(s, mean["dx"], mean.answered)

    def personal(self, fed: Federation, s: State) -> Requests:
        return fed.request(put_together, shared={"x": s.x}, parts=self.shared(fed))

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        """What is shared, with the initial model's other parts."""
        asked = new.request(put_together, shared={"x": s.x}, parts=self.shared(fed))
        return new.look(asked)["model"]

    def global_model(self, s: State) -> None:
        """There is none: what is shared is a part of a model."""


@register("fedper")
@dataclass
class FedPer(Partial):
    """FedPer (Arivazhagan et al., 2019): FedAvg of the base, with a head of one's own.

    A model is [x, h_i], base and head. Each sampled client, from y = [x, h_i]:
    y <- y - lr*g_i(y), K times; it keeps the head of y as h_i and sends the base;
    x <- mean_S of the bases. Personal model: [x, h_i]. The head is the last layer, or `head`.
    Lost clients are left out of the mean and keep h_i; if nobody answers, x stays.
    """

    needs: ClassVar[str] = "layers"

    head: Head = ""

    def shared(self, fed: Federation) -> str:
        return f"!{self.head_of(fed)}"

    def head_of(self, fed: Federation) -> str:
        """The names of the head's parameters."""
        return self.head or last(fed.problem.layout, f"method '{self.name}'", "head = '0:10'")


@register("lg-fedavg")
@dataclass
class LGFedAvg(FedPer):
    """LG-FedAvg (Liang et al., 2020): FedAvg of the head, with a base of one's own.

    FedPer with the halves exchanged: the representation b_i stays at the client, the head x
    travels. From y = [b_i, x]: y <- y - lr*g_i(y), K times; the client keeps the base of y and
    sends the head; x <- mean_S of the heads. Personal model: [b_i, x]. Lost clients are left
    out of the mean and keep b_i; if nobody answers, x stays.
    """

    def shared(self, fed: Federation) -> str:
        return self.head_of(fed)


@register("fedbn")
@dataclass
class FedBN(Partial):
    """FedBN (Li et al., 2021): FedAvg of all but the normalisation layers, which stay at home.

    A model is [x, n_i]; n_i are the weights of batch, layer, group and instance norms. From
    y = [x, n_i]: y <- y - lr*g_i(y), K times; the client keeps n_i of y and sends the rest;
    x <- mean_S of the rest. Personal model: [x, n_i], whose batch norms go by statistics of the
    client's own data. Lost clients are left out of the mean and keep n_i.
    """

    needs: ClassVar[str] = "norms"

    def shared(self, fed: Federation) -> str:
        problem = fed.problem
        return "!" + norms(problem.spec.module, problem.layout, f"method '{self.name}'")


def train_both(client: Client, x: Tensor, parts: str, lr: Any, **work: Any) -> dict[str, Tensor]:
    halves = Halves(client, parts)
    y = sgd(client, halves.model(x), lr, work)
    halves.keep(y)
    return {"dx": halves.shared.pick(y) - x}


def put_together(client: Client, x: Tensor, parts: str) -> dict[str, Tensor]:
    return {"model": Halves(client, parts).model(x)}
