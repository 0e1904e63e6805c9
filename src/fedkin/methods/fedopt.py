"""FedAvgM, FedAdam and FedYogi: FedAvg whose server takes the steps of an optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import Doc

from fedkin.methods.base import BelowOne, Positive
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.registry import register
from fedkin.methods.shared.optimisers import ServerName


@register("fedavgm")
@dataclass
class FedAvgM(FedAvg):
    """FedAvgM (Hsu et al., 2019): FedAvg with momentum at the server.

    With dx = mean_S(y - x) of FedAvg: m <- server_momentum*m + dx, x <- x + server_lr*m. A
    lasting dx moves x by up to 1/(1 - server_momentum) times as much as in FedAvg. Lost clients
    are left out of the mean; if nobody answers, x and m stay.
    """

    server_optimiser: Annotated[
        ServerName, Doc("how the mean change becomes the server's step")
    ] = "momentum"
    server_lr: Annotated[Positive, Doc("size of the server's step")] = 0.3


@register("fedadam")
@dataclass
class FedAdam(FedAvg):
    """FedAdam (Reddi et al., 2021): FedAvg whose server treats the mean change as Adam does.

    With dx = mean_S(y - x) of FedAvg, beta1 = server_momentum and beta2 = server_beta2:
    m <- beta1*m + (1 - beta1)*dx, v <- beta2*v + (1 - beta2)*dx^2 (at first tau^2),
    x <- x + server_lr*m/(sqrt(v) + tau). Lost clients are left out of the mean; if nobody
    answers, x, m and v stay.
    """

    server_optimiser: Annotated[
        ServerName, Doc("how the mean change becomes the server's step")
    ] = "adam"
    server_lr: Annotated[Positive, Doc("size of the server's step")] = 0.03
    server_momentum: Annotated[BelowOne, Doc("beta1 of the server")] = 0.9


@register("fedyogi")
@dataclass
class FedYogi(FedAdam):
    """FedYogi (Reddi et al., 2021): FedAdam whose v changes by no more than dx^2 allows.

    v <- v - (1 - beta2)*dx^2*sign(v - dx^2); all else as in FedAdam.
    """

    server_optimiser: Annotated[
        ServerName, Doc("how the mean change becomes the server's step")
    ] = "yogi"
