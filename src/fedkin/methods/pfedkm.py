"""pFedKM."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.federation import Federation, Request
from fedkin.methods.base import NO_ONE_MODEL, Count, State, own
from fedkin.methods.ifca import best_of, group_means
from fedkin.methods.pfedme import PFedMe, envelope_steps
from fedkin.methods.registry import register
from fedkin.methods.shared.kmeans import kmeans, kmeans_anew, numbered_like


@register("pfedkm")
@dataclass
class PFedKM(PFedMe):
    """pFedKM (Personalized FL with Clustered Generalization): pFedMe around K group models.

    A client works as in pFedMe, from the model of its group; the server runs k-means on
    the uploads w_i and Omega_k <- (1-beta)*Omega_k + beta*(mean of w_i in cluster k). K is
    `clusters`; with K=1 it is pFedMe. Personal model: theta_i, kept by the client.

    Where m of n clients take part in a round, everybody is asked once in the first n/m rounds,
    from the initial model, so that uploads can be compared; then groups are found by the best of
    ten k-means++ starts. Afterwards k-means starts from the group models, on the uploads of the
    round, and a group nobody of which was asked stays as it is. With `anew` it is k-means++ in
    every round, on everybody's last upload. Groups keep their numbers. Lost clients, and those
    not asked, stay in their group; before their first upload (cluster -1) they work from the mean
    of the group models.
    """

    not_private: ClassVar[str] = "its server groups single clients' models"

    refuses: ClassVar[Mapping[str, str]] = NO_ONE_MODEL

    clusters: Annotated[Count, Doc("number of groups")] = 3
    anew: Annotated[bool, Doc("k-means++ starts afresh in every round")] = False

    def init(self, fed: Federation) -> State:
        x, order = fed.initial_model(), fed.random("order").permutation(fed.size)
        waits = self.clusters > 1 and (self.anew or fed.fraction < 1)
        return State(
            groups=x.repeat(self.clusters, 1), cluster=torch.full((fed.size,), -1),
            started=int(self.clusters == 1), order=torch.from_numpy(order),
            heard=torch.zeros(fed.size, dtype=torch.bool),
            last=x.new_zeros(fed.size if waits else 0, len(x)),
        )  # fmt: skip

    def round(self, fed: Federation, s: State) -> None:
        who = fed.sample()
        if not s.started:
            places = (fed.round - 1) * len(who) + torch.arange(len(who))
            who = s.order[places % fed.size].sort().values
        start = models_of(s.groups, s.cluster[who])
        r = fed.map(envelope_steps, at=who, each={"x": start}, **self.solver, **self.work)
        iterations, began = 0, time.perf_counter()
        if r.arrived.any():
            uploads = (start + r["dw"])[r.arrived]
            iterations = self.regroup(fed, s, who[r.arrived], uploads, fed.round * len(who))
        seconds = time.perf_counter() - began
        fed.record(cluster=s.cluster, kmeans_iterations=iterations, kmeans_seconds=seconds)
        if self.clusters > 1:
            fed.record(group_distance=torch.pdist(s.groups))

    def regroup(self, fed: Federation, s: State, who: Tensor, uploads: Tensor, asked: int) -> int:
        """Cluster uploads and move the group models; k-means' iterations."""
        weights, count = self.weights(fed), min(self.clusters, fed.size)
        if len(s.last):
            s.last[who], s.heard[who] = uploads, True
            who, uploads = s.heard.nonzero()[:, 0], s.last[s.heard]
        counts = torch.ones(len(who)) if weights is None else weights[who]
        if s.started and not self.anew:
            found = kmeans(uploads, s.groups, counts)
        elif asked < fed.size or len(who) < count:  # not everybody has been asked
            return 0
        else:
            found = kmeans_anew(uploads, self.clusters, counts, fed.random("kmeans"))
            found = numbered_like(found, s.groups)
            s.started, s.last = 1, s.last if self.anew else s.last[:0]
        means = group_means(uploads, found.labels, counts, s.groups)
        s.groups = (1 - self.beta) * s.groups + self.beta * means
        s.cluster = s.cluster.index_copy(0, who, found.labels)
        return found.iterations

    def personal(self, fed: Federation, s: State) -> Request:
        return fed.request(own, each={"x": models_of(s.groups, s.cluster)}, kept="theta")

    def welcome(self, fed: Federation, s: State, new: Federation, hosts: bool) -> Tensor:
        """The group model that suits the newcomer's training data best."""
        return new.look(new.request(best_of, shared={"models": s.groups}))["model"]

    def results(self, s: State) -> dict[str, Tensor]:
        return {"cluster": s.cluster}

    def global_model(self, s: State) -> None:
        """There is none: one model per group."""


def models_of(groups: Tensor, cluster: Tensor) -> Tensor:
    """The model of every client's group; the mean of all groups for a client without one (-1)."""
    return torch.cat([groups, groups.mean(0, keepdim=True)])[cluster]
