"""Who is kin to whom: gradients at w, and from them the weights that clients give each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import Doc

from fedkin.core.federation import Federation
from fedkin.core.variants import Variant
from fedkin.methods.base import Count, State
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.perm_printed import gradient_at
from fedkin.methods.shared import mixing, neighbours

# clients up to which weights are of all pairs. Beyond, they are of the nearest ones only: unless
# told otherwise so many at most, by gradients of so many numbers
MANY = 2_000
NEAREST, SKETCH = 32, 1024
# nobody is kin to more than so many times `nearest` others, beyond MANY clients
CROWD = 4


@dataclass
class LearnsKin(FedAvg):
    """FedAvg with the part of PERM that finds out who to learn with.

    Client i's weights are alpha[i, k], of the clients kin[i, k]. Up to MANY clients all are
    compared with all, and kin names everybody; beyond, the nearest ones only.
    """

    nearest: Annotated[
        Count | None, Doc("learn from so many clients at most (none: all, or 32 of over 2,000)")
    ] = None
    gradient_batches: Annotated[
        Count | None, Doc("minibatches per gradient sent (none: all training data)")
    ] = None
    sketch: Annotated[
        Count | None,
        Doc("reduce gradients to so many numbers (none: whole, or 1024 of over 2,000 clients)"),
    ] = None

    def sketched(self, clients: int, length: int) -> tuple[int, ...]:
        """What gradients of this length are reduced to; empty where they stay whole."""
        if self.sketch is None and clients > MANY and length > SKETCH:
            return (SKETCH,)
        return () if self.sketch is None else (self.sketch,)

    def first_kin(self, fed: Federation, x: Tensor) -> State:
        """Nobody was heard yet: all weigh the same."""
        n, length = fed.size, len(x)
        kin = torch.arange(n)[:, None] if n > MANY else torch.arange(n).repeat(n, 1)
        return State(
            g=x.new_zeros(n, *(self.sketched(n, length) or (length,))),
            heard=torch.zeros(n, dtype=torch.int64), since=1,
            kin=kin, alpha=torch.full((1, *kin.shape), 1 / kin.shape[1]).double(),
        )  # fmt: skip

    def hear(self, fed: Federation, s: State, form: Variant) -> None:
        """Gradients at w as it was early, of those present whose last one is too old."""
        present = fed.sample()
        due = present[s.heard[present] < s.since]
        x, form = self.compared(fed, s, form)
        r = fed.map(
            gradient_at, due, {"x": x}, variant=form, batches=self.gradient_batches,
            sketch=self.sketched(fed.size, len(x)),
        )  # fmt: skip
        if r.arrived.any():
            s.g[due[r.arrived]] = r["g"][r.arrived]
            s.heard[due[r.arrived]] = s.epoch

    def compared(self, fed: Federation, s: State, form: Variant) -> tuple[Tensor, Variant]:
        """The model by whose gradients clients are compared."""
        return s.early, form

    def weigh(self, fed: Federation, s: State, lams: Sequence[float], own: Tensor | None) -> None:
        """Everybody's kin and weights, for each of these lam or, with a lam of its `own`, one."""
        s.kin, z = self.nearby(s)
        n, unit = fed.samples[s.kin], self.unit(fed, s)
        finite = [lam for lam in lams if lam < inf]
        if own is None:
            s.alpha = torch.stack([mixing.simplex_weights(z, n, lam * unit) for lam in finite])
            return
        s.alpha = torch.zeros(1, *z.shape).double()
        for lam in finite:
            some = own == lam
            s.alpha[0, some] = mixing.simplex_weights(z, n, lam * unit)[some]

    def nearby(self, s: State) -> tuple[Tensor, Tensor]:
        """Whom each client may learn from [N, s], and z: how much that would mislead it."""
        if len(s.heard) <= MANY:
            return mixing.nearest_of_all(self.distances(s), self.nearest)
        heard, count = s.heard.nonzero()[:, 0], self.nearest or NEAREST
        own = torch.arange(len(s.heard))[:, None]
        kin, z = own.repeat(1, count), torch.full((len(own), count), inf).double()
        z[:, 0] = 0
        if len(heard) > count:
            found, apart = neighbours.nearest(s.g[heard].cpu(), count)
            kin[heard], z[heard] = heard[found], apart
        z = neighbours.uncrowded(kin, z.masked_fill(self.barred(s, kin), inf), CROWD * count)
        order = kin.argsort(1)
        return kin.gather(1, order), z.gather(1, order)

    def barred(self, s: State, kin: Tensor) -> Tensor:
        """Which of those that are near a client must not be learnt from."""
        return torch.zeros(1, dtype=torch.bool)

    def distances(self, s: State) -> Tensor:
        """z_ij: how much client j's data would mislead client i, for all pairs."""
        z, unheard = mixing.squared_distances(s.g).cpu(), s.heard == 0
        return z.masked_fill(unheard[:, None] | unheard, inf).fill_diagonal_(0)

    def unit(self, fed: Federation, s: State) -> float:
        """What lam_rel is in units of."""
        if fed.size <= MANY:
            return mixing.scale_free(self.distances(s), fed.samples, 1.0)
        heard = s.g[s.heard > 0]
        mean = float(fed.samples.double().mean())
        return mixing.median_of_some(heard) * mean if len(heard) > 1 else 0.0

    def own_weight(self, s: State) -> Tensor:
        """The mean weight that clients give to themselves."""
        mine = s.kin == torch.arange(len(s.kin))[:, None]
        weights: Tensor = (s.alpha * mine).sum(2).mean()
        return weights

    def weights_for(self, fed: Federation, s: State, new: Federation, lam: float) -> Tensor:
        """The weights [M, N + 1] that newcomers give to the clients and, last, themselves."""
        asked = new.request(
            gradient_at, shared={"x": s.early}, batches=self.gradient_batches,
            sketch=self.sketched(fed.size, len(s.early)),
        )  # fmt: skip
        most = self.nearest or (NEAREST if fed.size > MANY else None)
        return mixing.weights_of_newcomers(
            new.look(asked)["g"], new.samples, s.g, fed.samples, s.heard > 0,
            lam * self.unit(fed, s), most,
        )  # fmt: skip

    def all_weights(self, s: State, chosen: Sequence[Tensor]) -> Tensor:
        """Weights [N, N], of each stack the rows chosen; those of nobody's choice are all alike.

        Beyond MANY clients it is a sparse matrix, in which rows that are all alike are empty.
        """
        n, alpha = len(s.kin), torch.zeros(s.kin.shape).double()
        for some, rows in zip(chosen, s.alpha, strict=True):
            alpha[some] = rows[some]
        if n <= MANY:
            dense = torch.zeros(n, n).double().scatter_add_(1, s.kin, alpha)
            alike = ~torch.stack(list(chosen)).any(0)
            return dense.masked_fill(alike[:, None], 1 / n)
        row, place = alpha.nonzero().T
        pairs = torch.stack([row, s.kin[row, place]])
        found = torch.sparse_coo_tensor(pairs, alpha[row, place], (n, n), check_invariants=True)
        return found.coalesce()
