"""pFedKM."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from sklearn.cluster import KMeans
from torch import Tensor

from fedkin.core.federation import Federation, Request
from fedkin.methods.base import NO_ONE_MODEL, Count, State, own
from fedkin.methods.ifca import group_means
from fedkin.methods.pfedme import PFedMe, envelope_steps
from fedkin.methods.registry import register


@register("pfedkm")
@dataclass
class PFedKM(PFedMe):
    """pFedKM (Personalized FL with Clustered Generalization): pFedMe around K group models.

    A client works as in pFedMe, from the model of its group; the server runs k-means on
    the uploads w_i (the best of ten k-means++ starts at first, afterwards from the group
    models, so that groups keep their numbers) and
    Omega_k <- (1-beta)*Omega_k + beta*(mean of w_i in cluster k). K is `clusters`; with K=1
    it is pFedMe. Personal model: theta_i, kept by the client. Lost clients, and those not
    asked, stay in their group; before their first upload (cluster -1) they work from the mean
    of the group models. A group without uploads stays as it is. When fewer than K uploads
    arrive, each joins the group whose model is nearest.
    """

    refuses: ClassVar[Mapping[str, str]] = NO_ONE_MODEL

    clusters: Count = 3

    def init(self, fed: Federation) -> State:
        groups = fed.initial_model().repeat(self.clusters, 1)
        return State(groups=groups, cluster=torch.full((fed.size,), -1), started=0)

    def round(self, fed: Federation, s: State) -> None:
        who = fed.sample()
        start = models_of(s.groups, s.cluster[who])
        r = fed.map(envelope_steps, at=who, each={"x": start}, **self.solver, **self.work)
        iterations, began = 0, time.perf_counter()
        if r.arrived.any():
            iterations = self.regroup(fed, s, who[r.arrived], (start + r["dw"])[r.arrived])
        seconds = time.perf_counter() - began
        fed.record(cluster=s.cluster, kmeans_iterations=iterations, kmeans_seconds=seconds)
        if self.clusters > 1:
            fed.record(group_distance=torch.pdist(s.groups))

    def regroup(self, fed: Federation, s: State, who: Tensor, uploads: Tensor) -> int:
        """Cluster these clients' uploads and move the group models; k-means' iterations."""
        weights = self.weights(fed)
        counts = torch.ones(len(who)) if weights is None else weights[who]
        iterations = 0
        if len(who) < self.clusters:
            labels = torch.cdist(uploads, s.groups).argmin(1).cpu()
        else:
            kmeans = KMeans(
                self.clusters,
                init=s.groups.numpy(force=True) if s.started else "k-means++",
                n_init=1 if s.started else 10,
                random_state=int(fed.random("kmeans").integers(2**31)),
            ).fit(uploads.numpy(force=True), sample_weight=counts.numpy())
            labels, iterations = torch.from_numpy(kmeans.labels_).long(), kmeans.n_iter_
            s.started = 1
        means = group_means(uploads, labels, counts, s.groups)
        s.groups = (1 - self.beta) * s.groups + self.beta * means
        s.cluster = s.cluster.index_copy(0, who, labels)
        return iterations

    def personal(self, fed: Federation, s: State) -> Request:
        return fed.request(own, each={"x": models_of(s.groups, s.cluster)}, kept="theta")

    def results(self, s: State) -> dict[str, Tensor]:
        return {"cluster": s.cluster}

    def global_model(self, s: State) -> None:
        """There is none: one model per group."""


def models_of(groups: Tensor, cluster: Tensor) -> Tensor:
    """The model of every client's group; the mean of all groups for a client without one (-1)."""
    return torch.cat([groups, groups.mean(0, keepdim=True)])[cluster]
