"""CFL: clustered federated learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.federation import Federation, Requests
from fedkin.methods.base import NO_ONE_MODEL, NotNegative, Positive, Share, State, use
from fedkin.methods.fedavg import FedAvg, local_sgd
from fedkin.methods.ifca import best_of, group_means
from fedkin.methods.registry import register


@register("cfl")
@dataclass
class CFL(FedAvg):
    """CFL (Sattler et al., 2020): FedAvg in groups that split where clients pull apart.

    All clients begin in one group with model x_1. In group k: each sampled client, from
    y = x_k: y <- y - lr*g_i(y), K times, dy_i = y - x_k; x_k <- x_k + mean of dy_i. When x_k has
    come to rest while its clients have not, |mean dy_i| < eps1*max|dy_i| and
    max|dy_i| > eps2*(the largest |dy_i| of the first round), the group is cut in two so that
    a_max, the largest cosine of dy_i and dy_j over the cut, is as small as can be; the cut stays
    if sqrt((1 - a_max)/2) > gamma. Each half begins at x_k. Only groups all of whose clients
    have answered since they began are cut, by their last answers. Personal model: that of the
    client's group. Lost clients are left out.
    """

    not_private: ClassVar[str] = "its server compares single clients' answers"

    refuses: ClassVar[Mapping[str, str]] = NO_ONE_MODEL

    eps1: Annotated[
        Positive, Doc("a group rests when its mean change is below this part of the largest")
    ] = 0.4
    eps2: Annotated[
        NotNegative, Doc("clients rest when they change by less than this part of the first change")
    ] = 0.2
    gamma: Annotated[Share, Doc("how far the halves of a group must pull apart")] = 0.7

    def init(self, fed: Federation) -> State:
        x = fed.initial_model()
        return State(
            x=x[None], cluster=torch.zeros(fed.size, dtype=torch.long),
            last=x.new_zeros(fed.size, len(x)), heard=torch.zeros(fed.size, dtype=torch.bool),
            first=x.new_zeros(1),
        )  # fmt: skip

    def round(self, fed: Federation, s: State) -> None:
        who = fed.sample()
        start = s.x[s.cluster[who]]
        r = fed.map(local_sgd, at=who, each={"x": start}, lr=self.lr, **self.work)
        if r.arrived.any():
            here, weights = who[r.arrived], self.weights(fed)
            counts = torch.ones(len(here)) if weights is None else weights[here]
            s.last[here], s.heard[here] = r["dx"][r.arrived], True
            if not s.first:
                s.first = r["dx"][r.arrived].norm(dim=1).max()[None]
            ends = start[r.arrived] + r["dx"][r.arrived]
            s.x = group_means(ends, s.cluster[here], counts, s.x)
            for group in range(len(s.x)):
                self.split(s, (s.cluster == group).nonzero()[:, 0])
        fed.record(cluster=s.cluster, groups=float(len(s.x)))

    def split(self, s: State, members: Tensor) -> None:
        """Cut a group in two, if it rests and its clients pull apart."""
        if len(members) < 3 or not s.heard[members].all():
            return
        rows = s.last[members]
        norms = rows.norm(dim=1)
        if rows.mean(0).norm() >= self.eps1 * norms.max() or norms.max() <= self.eps2 * s.first:
            return
        half, a_max = cut(rows / norms.clamp(min=1e-30)[:, None])
        if ((1 - a_max) / 2) ** 0.5 > self.gamma:
            s.x = torch.cat([s.x, s.x[s.cluster[members[:1]]]])
            s.cluster = s.cluster.index_fill(0, members[half], len(s.x) - 1)
            s.heard[members] = False

    def personal(self, fed: Federation, s: State) -> Requests:
        return fed.request(use, each={"model": s.x[s.cluster]})

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        """The group's model that suits the newcomer's training data best."""
        return new.look(new.request(best_of, shared={"models": s.x}))["model"]

    def results(self, s: State) -> dict[str, Tensor]:
        return {"cluster": s.cluster}

    def global_model(self, s: State) -> None:
        """There is none: one model per group."""


def cut(directions: Tensor) -> tuple[Tensor, float]:
    """The half of the rows (as a mask, without the first row) that are cut off, and the largest
    cosine over the cut, the smallest possible: the last merger of single linkage."""
    from scipy.cluster.hierarchy import cut_tree, linkage  # imported here: it takes half a second
    from scipy.spatial.distance import squareform

    cosines = (directions @ directions.T).double().cpu().clamp(-1, 1)
    apart = squareform((1 - cosines).numpy(), checks=False)
    tree = linkage(apart, "single")
    labels = torch.from_numpy(cut_tree(tree, 2)[:, 0])
    return labels != labels[0], float(1 - tree[-1, 2])
